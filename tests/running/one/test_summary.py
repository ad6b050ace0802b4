import dataclasses

import pytest

from flatout.nouns.run_end import RunEnd
from flatout.running.one import summary
from flatout_agent import wire


def started(rank: int = 0) -> wire.Started:
    return wire.Started(1, ("python",), "3.11", "/usr/bin/python", rank)


def ended(steps: int = 10, samples: int = 100, train_s: float = 2.0, wait_s: float = 0.5,
          peak: int | None = 1000) -> wire.Ended:  # fmt: skip
    return wire.Ended("program", steps, samples, train_s, wait_s, peak)


def of(*processes: list[wire.Record], boosts: tuple[str, ...] = ()) -> RunEnd:
    records = [(pid, record) for pid, parts in enumerate(processes) for record in parts]
    return summary.run_end(records, boosts)


TRAINED = [started(), wire.TorchSeen("2"), ended()]


def test_one_process() -> None:
    assert of(TRAINED) == RunEnd(10, samples_per_s=50.0, peak_bytes=1000, wait_share=0.25)


def test_ranks_work_at_the_same_time() -> None:
    end = of([started(1), ended(12, 300, 3.0, 0.0, 5000)], TRAINED, [started()])
    assert end.steps == 10  # of rank 0
    assert end.samples_per_s == 150.0
    assert end.peak_bytes == 5000
    assert end.wait_share == pytest.approx(0.125)


def test_trainings_of_one_job_script_follow_each_other() -> None:
    end = of(TRAINED, [started(), ended(30, 500, 2.0)])
    assert end.steps == 40
    assert end.samples_per_s == 150.0


def test_a_single_step_has_no_rate() -> None:
    end = of([started(), ended(1, 0, 0.0, 0.0, None)])
    assert end == RunEnd(1)


def test_helpers_that_do_not_train_do_not_count() -> None:
    assert of(TRAINED, [started(), wire.TorchSeen("2"), ended(0, 0, 0.0, 0.0, 10**9)]) == of(
        TRAINED
    )


def test_boosts_are_told_with_their_last_word() -> None:
    notes = [
        wire.BoostNote("a", "applied"),
        wire.BoostNote("b", "applied"),
        wire.BoostNote("b", "idle", "bf16 is emulated here"),
        wire.BoostNote("c", "declined", "no Conv2d"),
        wire.BoostNote("e", "applied"),
        wire.BoostNote("e", "engaged", "captured"),
    ]
    end = of([*TRAINED, *notes], boosts=("a", "b", "c", "d", "e"))
    assert end.engaged == ("a", "e")
    assert end.not_engaged == {
        "b": "idle: bf16 is emulated here",
        "c": "declined: no Conv2d",
        "d": "the agent did not get to it",
    }


def test_a_boost_that_took_hold_in_one_rank_took_hold() -> None:
    declined = [started(1), ended(), wire.BoostNote("a", "declined", "no loader")]
    end = of([*TRAINED, wire.BoostNote("a", "engaged")], declined, boosts=("a",))
    assert (end.engaged, end.not_engaged) == (("a",), {})


@pytest.mark.parametrize(
    ("processes", "note"),
    [
        ([], summary.NO_AGENT),
        ([[started()]], summary.NO_TORCH),
        ([[started(), wire.TorchSeen("2"), ended(0, 0, 0.0, 0.0)]], summary.NO_STEP),
        (
            [[started(), wire.TorchSeen("2"), wire.Ended("program", 0, 0, 0.0, 0.0, backwards=3)]],
            "no training step was seen: the program called backward 3 times, but no optimizer took "
            "a step and no weight was seen to change between these calls",
        ),
        (
            [[started(), wire.TorchSeen("2"), wire.Ended("program", 0, 0, 0.0, 0.0, children=2)]],
            "no training step was seen: the program took no optimizer step itself; it started 2 "
            "processes through multiprocessing, and flatout does not see what these train",
        ),
        ([[started(), wire.TorchSeen("2")]], summary.CUT_SHORT),
        ([TRAINED], None),
        ([TRAINED, [started()]], None),
    ],
)
def test_what_went_missing_is_told_in_one_line(
    processes: list[list[wire.Record]], note: str | None
) -> None:
    assert of(*processes).notes == ((note,) if note else ())


def test_faults_are_told_once() -> None:
    fault = wire.Fault("hook", "KeyError")
    assert of([*TRAINED, fault], [started(1), fault]).faults == ("hook: KeyError",)


def test_a_run_without_the_agent_says_so() -> None:
    assert summary.run_end((), (), followed=False).notes == (summary.NOT_FOLLOWED,)


def test_data_parallel_is_told_what_would_be_tried_instead() -> None:
    spread = dataclasses.replace(ended(), data_parallel=4)
    (note,) = of([started(), wire.TorchSeen("2"), spread]).notes
    assert "drives 4 GPUs from one process; flatout run --gpus all" in note
    alone = dataclasses.replace(ended(), data_parallel=1)
    assert of([started(), wire.TorchSeen("2"), alone]).notes == ()
