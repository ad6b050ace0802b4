"""What is trained on and what is evaluated with are told apart, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_agent.watch import loop_record
from flatout_agent.watch.loop_record import LoopRecord

TRAIN = SimpleNamespace(num_workers=2, prefetch_factor=3)
VALIDATION = SimpleNamespace(num_workers=0, prefetch_factor=None)


class Clock:
    """`time` that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_record, "time", clock)
    return clock


def batch(rows: int) -> Any:
    return {"x": torch.zeros(rows, 2), "label": torch.zeros(rows)}


def call(record: LoopRecord, rows: int, lead: bool = True) -> Any:
    return record.training_call((torch.zeros(rows, 2),), {}, lead)


def evaluate(record: LoopRecord, clock: Clock, seconds: float) -> None:
    record.batch(VALIDATION, batch(32), 0.5)
    record.evaluation_begins()
    clock.now += seconds
    record.evaluated(torch.zeros(1, requires_grad=True))


def test_a_step_is_its_batches_waits_and_backward_passes(clock: Clock) -> None:
    record = LoopRecord()
    for _ in range(2):
        clock.now += 1.0
        record.batch(TRAIN, batch(4), 0.25)
        assert call(record, 4) == (4, 2)
        record.backward()
    step = record.step(clock.now)
    assert (step.samples, step.wait_s, step.micro_steps) == (8, 0.5, 2)
    assert step.wall_s == pytest.approx(1.25)  # from the wait for the first batch on
    record.goes_on()
    clock.now += 3.0
    assert record.step(clock.now).wall_s == 3.0
    assert record.mean_micro_steps() == 1.5
    assert record.buffered() == 6


@pytest.mark.parametrize(("until_training", "eval_s"), [(False, 4.0), (True, 7.0)])
def test_batches_that_an_evaluation_follows_are_not_trained_on(
    clock: Clock, until_training: bool, eval_s: float
) -> None:
    record = LoopRecord(until_training)
    record.batch(TRAIN, batch(4), 0.0)
    call(record, 4)
    for _ in range(2):
        evaluate(record, clock, 2.0)
    clock.now += 3.0  # the program saves
    record.batch(TRAIN, batch(4), 0.0)
    call(record, 4)
    step = record.step(clock.now)
    assert (step.samples, step.wait_s, step.eval_s) == (8, 0.0, eval_s)
    assert step.train_s == 7.0 - eval_s
    assert record.training_loader is TRAIN
    assert record.eval_seen
    assert record.eval_with_grad


def test_a_loss_in_evaluation_mode_that_is_trained_on_is_no_waste(clock: Clock) -> None:
    record = LoopRecord()
    evaluate(record, clock, 1.0)
    record.backward()
    call(record, 4)
    assert not record.eval_with_grad


def test_without_a_loader_the_first_models_inputs_count(clock: Clock) -> None:
    record = LoopRecord()
    call(record, 4)
    call(record, 4, lead=False)
    assert record.step(clock.now).samples == 4
    assert record.step(clock.now).samples == 0
    record.batch(TRAIN, batch(3), 0.0)
    call(record, 4)
    assert record.step(clock.now).samples == 3
    assert LoopRecord().buffered() == 0
    assert record.training_call((), {}, lead=True) is None


def test_a_closure_is_an_optimizer_that_computes_the_loss_itself(clock: Clock) -> None:
    record = LoopRecord()
    record.backward()
    record.optimizer_starts()
    assert not record.closure
    record.backward()
    assert record.closure
