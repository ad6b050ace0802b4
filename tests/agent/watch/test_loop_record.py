"""What is trained on and what is evaluated with are told apart, step by step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_agent.watch import loop_record
from flatout_agent.watch.loop_record import LoopRecord, Step

STEPS = 6
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


def without_gradients(record: LoopRecord, clock: Clock, value: Any, training: bool = True) -> None:
    """Call a model for a second."""
    evaluates = record.evaluates(torch.nn.Linear(2, 2).train(training), (value,), {})
    clock.now += 1.0
    if evaluates:
        record.evaluated(torch.zeros(1))


def train(
    record: LoopRecord, clock: Clock, before: Callable[[int], None], loader: Any = None
) -> list[Step]:
    """Steps of two seconds, each after `before` with its number."""
    steps = []
    for number in range(STEPS):
        if loader is not None:
            record.batch(loader, batch(4), 0.5)
        before(number)
        call(record, 4)
        clock.now += 2.0
        steps.append(record.step(clock.now))
        record.goes_on()
    return steps


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


@pytest.mark.parametrize(
    ("order", "micro_steps"),
    [
        ("b u b u b u", 1),  # a GAN with three optimizers
        ("b b b b u u", 4),  # gradients add up, and two optimizers share the parameters
        ("u b b b", 3),  # a closure
        ("b b", 2),  # no optimizer
        ("u", 1),
    ],
)
def test_a_micro_step_is_a_backward_pass_whose_gradients_add_up(
    clock: Clock, order: str, micro_steps: int
) -> None:
    record = LoopRecord()
    for _ in range(3):
        for event in order.split():
            record.backward() if event == "b" else record.optimizer_starts()
        clock.now += 1.0
        assert record.step(clock.now).micro_steps == micro_steps
    assert record.mean_micro_steps() == micro_steps


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
    assert record.eval_with_grad


def test_an_evaluation_begins_when_the_training_before_it_is_done(clock: Clock) -> None:
    """Work of 3 seconds is queued on a device when the program evaluates."""
    queued_s = [3.0]

    def wait() -> None:
        clock.now += queued_s.pop() if queued_s else 0.0

    record = LoopRecord(until_training=True, waits=wait)
    call(record, 4)
    for _ in range(2):
        evaluate(record, clock, 2.0)
    call(record, 4)
    step = record.step(clock.now)
    assert (step.eval_s, step.train_s) == (4.0, 3.0)


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


def test_a_call_without_gradients_in_each_step_belongs_to_it(clock: Clock) -> None:
    record, evaluating = LoopRecord(), []

    def act(number: int) -> None:
        for more in range(2):
            without_gradients(record, clock, torch.full((3, 2), number + more))
            evaluating.append(record.evaluation[0])

    steps = train(record, clock, act)
    assert [step.train_s for step in steps[1:]] == [4.0] * (STEPS - 1)  # the second in retrospect
    assert not any(evaluating[-2:])


def test_the_batch_that_such_a_call_gets_is_trained_on(clock: Clock) -> None:
    record = LoopRecord()
    record.loader_starts()
    steps = train(
        record,
        clock,
        lambda number: without_gradients(record, clock, torch.full((4, 2), number)),
        TRAIN,
    )
    assert (steps[-1].samples, steps[-1].wait_s, steps[-1].eval_s) == (4, 0.5, 0.0)
    assert record.training_loader is TRAIN


def own_loader(record: LoopRecord, number: int) -> torch.Tensor:
    record.loader_starts()
    record.batch(VALIDATION, batch(32), 0.5)
    return torch.full((32, 2), number)


@pytest.mark.parametrize(
    ("inputs", "training", "every"),
    [
        (lambda record, number: torch.full((3, 2), number), False, 1),
        (lambda record, number: torch.full((3, 2), number), True, 2),
        (lambda record, number: torch.ones(3, 2), True, 1),
        (lambda record, number: f"prompt {number}", True, 1),
        (own_loader, True, 1),
    ],
    ids=["evaluation mode", "every other step", "same data", "no tensor", "own loader"],
)
def test_other_calls_without_gradients_evaluate(
    clock: Clock, inputs: Callable[..., Any], training: bool, every: int
) -> None:
    record = LoopRecord()

    def evaluate(number: int) -> None:
        if number % every == 0:
            without_gradients(record, clock, inputs(record, number), training)

    steps = train(record, clock, evaluate)
    assert [step.eval_s for step in steps] == [1.0, 1.0 * (every == 1)] * (STEPS // 2)


def test_an_evaluation_beside_such_calls_stays_one(clock: Clock) -> None:
    record = LoopRecord()

    def act(number: int) -> None:
        if number == STEPS - 1:
            without_gradients(record, clock, torch.full((3, 2), -1))
            clock.now += 4.0  # the program acts again
        without_gradients(record, clock, torch.full((3, 2), number))

    steps = train(record, clock, act)
    assert [step.eval_s for step in steps] == [0.0] * (STEPS - 1) + [1.0]
    assert steps[-1].train_s == 7.0


def test_a_tensor_that_must_not_be_read_is_left_alone(clock: Clock) -> None:
    record = LoopRecord()
    meta = torch.zeros(3, 2, device="meta")
    steps = train(record, clock, lambda number: without_gradients(record, clock, meta))
    assert {step.eval_s for step in steps} == {1.0}
