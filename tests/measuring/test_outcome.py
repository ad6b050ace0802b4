"""From records to figures: which steps count, which process leads, what is left out."""

from __future__ import annotations

import pytest

from flatout.measuring.outcome import LEAST_STEPS, Outcome, measured
from flatout.running.one.records import Process
from flatout_agent import wire


def step(index: int, phase: str = "window", wall_s: float = 0.1, **more: float) -> wire.StepTaken:
    return wire.StepTaken(index, phase, wall_s, **{"wait_s": 0.0, "samples": 8, **more})


def process(*records: wire.Record) -> Process:
    built = Process()
    for record in records:
        built.add(record)
    return built


WINDOW = [step(index, wall_s=time) for index, time in enumerate((0.1, 0.2, 0.3, 0.2), 5)]


def test_only_the_window_counts() -> None:
    figures = measured(process(step(0, "warmup", 9.0), step(4, "warmup", 9.0), *WINDOW), 1000)
    assert figures.step_ms == pytest.approx(200)
    assert figures.steps_ms == pytest.approx((100, 200, 300, 200))
    assert figures.samples_per_s == pytest.approx(40)
    assert figures.peak_bytes == 1000


def test_evaluation_is_told_apart_from_the_step() -> None:
    figures = measured(process(*WINDOW, step(9, wall_s=1.2, eval_s=1.0)), None)
    assert figures.step_ms == pytest.approx(200)


def test_compilation_is_what_the_first_steps_took_beyond_steady_ones() -> None:
    first = [step(0, "warmup", 5.2), step(1, "warmup", 0.3), step(2, "warmup", 1.2)]
    figures = measured(process(*first, *WINDOW), None)
    assert figures.compile_s == pytest.approx(6.0)


@pytest.mark.parametrize("count", range(LEAST_STEPS))
def test_too_few_steps_are_no_measurement(count: int) -> None:
    assert measured(process(step(0, "warmup"), *WINDOW[:count]), None) is None


def test_without_samples_there_is_no_rate_and_waiting_is_at_most_all() -> None:
    steps = [step(index, samples=0, wait_s=0.2) for index in range(4)]
    figures = measured(process(*steps), None)
    assert figures.samples_per_s is None
    assert figures.wait_share == 1.0


def test_samples_of_all_ranks_count() -> None:
    figures = measured(process(*WINDOW), None, world=4)
    assert figures.samples_per_s == pytest.approx(160)


def test_the_accelerators_memory_goes_before_the_processs() -> None:
    end = wire.Ended("window", 9, 32, 0.8, 0.0, peak_bytes=77, recompiles=2, graph_breaks=1)
    figures = measured(process(*WINDOW, end), 1000)
    assert (figures.peak_bytes, figures.recompiles, figures.graph_breaks) == (77, 2, 1)


def test_the_last_word_of_a_boost_stands() -> None:
    leading = process(
        wire.BoostNote("tf32", "applied", ""), wire.BoostNote("tf32", "idle", "no matmul")
    )
    outcome = Outcome(leading, None, "x", True, True, 0, "log", 1.0)
    assert outcome.notes["tf32"].state == "idle"
    assert Outcome(None, None, "x", False, False, 0, "log", 1.0).notes == {}
