"""Memory of a GPU: the guard keeps nothing where the program's own step may need the room.

There is no GPU here: the CPU stands for one whose free memory the test says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.boost import Risk
from flatout_agent.job import Job
from flatout_agent.live import checks, guard, headroom, recorded_calls, updates
from flatout_agent.live.guard import NOT_COMPARED
from flatout_agent.live.run import LiveWatch
from flatout_agent.live.updates import WeightsBefore
from flatout_agent.speedups import memory_counters
from guarded import cross_entropy, mlp, record, vectors
from planted import (
    NO_MEMORY,
    Program,
    assert_unharmed,
    larger,
    planted,
    planted_update,
    times,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PARAMETERS = sum(p.numel() * 4 for p in mlp().parameters())
OUTPUTS = 32 * 10 * 4
Left = Callable[[int], None]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Left:
    """Says how many bytes the device has left."""

    def has(free: int) -> None:
        monkeypatch.setattr(headroom, "LIMITED", ("cpu",))
        monkeypatch.setattr(headroom, "unused_bytes", lambda device: free)

    return has


@pytest.mark.parametrize(("reserved", "free"), [(500, 1100), (100, 800)])
def test_what_is_free_at_the_programs_peak(
    monkeypatch: pytest.MonkeyPatch, reserved: int, free: int
) -> None:
    monkeypatch.setattr(memory_counters, "_peaks", {})
    asked: list[Any] = []

    def answered(value: Any) -> Callable[[Any], Any]:
        return lambda device: asked.append(device) or value

    answers = {
        "mem_get_info": (1000, 8000),
        "memory_reserved": reserved,
        "max_memory_allocated": 300,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answered(answer))
    device = torch.device("cuda", 1)
    assert headroom.unused_bytes(device) == free
    assert asked == [device] * 3, "the very device, not the current one"


class Allocator:
    """A device's memory as torch counts it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        monkeypatch.setattr(memory_counters, "_peaks", {})

    def _reset(self, device: torch.device) -> None:
        self.peak = self.now

    def use(self, size: int) -> None:
        self.peak = max(self.peak, self.now + size)


def test_what_the_guard_uses_is_not_the_programs_peak(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, memory = torch.device("cuda", 0), Allocator(monkeypatch)
    monkeypatch.setattr(checks.forward_state, "devices", lambda models: [device])
    run = program()
    memory.use(70)
    for size, peak in ((20, 70), (300, 70), (90, 70)):
        with run.checks._repeating():
            memory.use(size)
        assert memory_counters.program_peak_bytes(device) == peak
    memory.use(60)
    assert memory_counters.program_peak_bytes(device) == 70
    memory.use(80)
    assert memory_counters.program_peak_bytes(device) == 80
    with pytest.raises(ValueError, match="as it were"), run.checks._repeating():
        memory.use(500)
        raise ValueError("as it were")
    assert memory_counters.program_peak_bytes(device) == 80


def test_nor_is_the_update_that_it_repeats(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = program(boost=planted_update(lambda optimizer: None))
    own = WeightsBefore.verdict
    monkeypatch.setattr(checks, "beside_the_program", lambda devices: guarding())
    inside: list[bool] = []

    @contextlib.contextmanager
    def guarding() -> Iterator[None]:
        inside.append(True)
        yield
        inside.pop()

    def verdict(before: Any, apply: Any) -> Any:
        assert inside == [True]
        return own(before, apply)

    monkeypatch.setattr(WeightsBefore, "verdict", verdict)
    assert run.check("boost").error == 0.0


def test_what_a_call_and_an_update_need(left: Left) -> None:
    (x, _), model = vectors(), mlp()
    output, optimizer = model(x), torch.optim.SGD(model.parameters(), 0.1)
    cases: list[tuple[int, Callable[[], str | None]]] = [
        (4 * PARAMETERS, lambda: headroom.lack_for_call(model)),
        (4 * (PARAMETERS + OUTPUTS), lambda: headroom.lack_for_call(model, [output])),
        (7 * PARAMETERS, lambda: headroom.lack_for_update(optimizer)),
    ]
    for needed, lack in cases:
        left(needed)
        assert lack() is None
        left(needed - 1)
        assert lack() == "too little GPU memory to compare"


def test_calls_that_wait_for_their_backward_pass_are_counted(left: Left) -> None:
    (x, _), model = vectors(), mlp()
    output, waiting = model(x), record(model, torch.sum, x)
    left(4 * (PARAMETERS + 2 * OUTPUTS) - 1)
    assert headroom.lack_for_call(model, output) is None
    assert headroom.lack_for_call(model, output, [waiting]) is not None


def test_memory_of_the_host_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "unused_bytes", lambda device: pytest.fail("asked"))
    assert headroom.lack_for_call(mlp(), torch.ones(3)) is None


def kept_during(run: Program, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tensors that were copied in each of the program's own calls."""
    found: list[int] = []
    own = recorded_calls.finish

    def finish(recorded: Any, *args: Any, **kwargs: Any) -> None:
        own(recorded, *args, **kwargs)
        found.append(len(recorded.outputs))

    monkeypatch.setattr(recorded_calls, "finish", finish)
    return found


@pytest.mark.parametrize("free", [0, 4 * PARAMETERS], ids=["none", "not for the outputs"])
@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING])
def test_without_room_only_exact_boosts_go_on(program, left, monkeypatch, free, risk) -> None:
    run = program(boost=planted(times(1.0), risk))
    kept = kept_during(run, monkeypatch)
    left(free)
    verdict = run.check("boost")
    assert verdict.passed is (risk is Risk.EXACT)
    assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"
    assert kept == []
    assert_unharmed(run)


def test_with_room_it_is_compared(program, left, monkeypatch) -> None:
    run = program(wrong=planted(times(1.02), Risk.ROUNDING))
    kept = kept_during(run, monkeypatch)
    left(4 * (PARAMETERS + OUTPUTS))
    assert run.check("wrong").error == pytest.approx(0.02, rel=0.5)
    assert kept == [0, 1], "of the other batch only the gradient is needed"


def test_a_gradient_that_finds_no_memory_does_not_end_the_programs_backward_pass(
    program, monkeypatch
) -> None:
    own = torch.Tensor.clone

    def clone(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if run.job.inside_backward():
            raise torch.OutOfMemoryError("CUDA out of memory, as it were")
        return own(tensor, *args, **kwargs)

    run = program(boost=planted(times(1.0), Risk.ROUNDING))
    monkeypatch.setattr(torch.Tensor, "clone", clone)
    verdict = run.check("boost")
    assert not verdict.passed
    assert verdict.reason == (f"{NOT_COMPARED}its gradients cannot be kept: OutOfMemoryError")
    assert_unharmed(run)


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (recorded_calls, "begin"), (recorded_calls, "finish"), (guard, "reference"),
        (guard, "compare"), (guard, "noise_floor"),
    ],
)  # fmt: skip
def test_memory_that_the_guard_lacks_is_no_fault_of_flatouts(
    program, monkeypatch, place, name, risk
) -> None:
    run = program(boost=planted(times(1.01), risk))
    calls = failing(monkeypatch, place, name)
    verdict = run.check("boost")
    assert verdict.passed is (risk is Risk.EXACT)
    assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"
    assert len(calls) == 1, "nothing more is recorded for this question"
    assert run.recorder._faults == set()
    run.step()
    assert_unharmed(run)


def failing(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[str]:
    """Let this function run out of memory; counts its calls."""
    calls: list[str] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        raise torch.OutOfMemoryError("CUDA out of memory, as it were")

    monkeypatch.setattr(place, name, fails)
    return calls


def test_a_boost_that_runs_out_of_memory_beside_the_guard_has_not_failed(program) -> None:
    run = program(hungry=planted(NO_MEMORY), other=planted(times(1.0)))
    checked = run.check_all("hungry", "other")
    verdict = checked.refused["hungry"]
    assert (verdict.failed, verdict.error) == (False, None)
    assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"
    assert [candidate.id for candidate in checked.sound] == ["other"]
    assert run.recorder._faults == set()
    assert_unharmed(run)


def test_a_second_model_is_not_passed_over_where_memory_lacks(program) -> None:
    second = mlp()
    other = planted(times(1.05), Risk.ROUNDING, at=second)
    run = program(hungry=planted(NO_MEMORY, Risk.ROUNDING), other=other)
    run.watch(second)

    def step() -> None:
        for model in (run.model, second):
            x, y = vectors()
            run.backward(cross_entropy(model(x), y))
        run.update()

    assert set(run.check_all("hungry", "other", step=step).refused) == {"hungry", "other"}


class Hungry(nn.Module):
    """Runs out of memory, late in its forward pass, as long as `full` says so."""

    failures = 0

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm, self.drop = mlp(), nn.BatchNorm1d(20), nn.Dropout(0.5)
        self.full: Callable[[], bool] = bool
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found = self.net(self.drop(self.norm(x)))
        if self.full():
            type(self).failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory, as it were")
        return found


def trained(program: Callable[..., Program], boosted: bool, checked: bool) -> Program:
    """Five steps; if checked, the GPU is full from the third on, while the guard holds a call."""
    torch.manual_seed(0)
    model = Hungry()
    run = program(model, boost=planted(times(1.0)), other=planted(times(1.0)))
    if boosted:
        run.keep("boost")
    run.step()
    if checked:
        model.full = lambda: bool(run.checks._recorded.purpose) and run.job.steps > 1
        verdict = run.check("other")
        assert verdict.passed
        assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"
    while len(run.losses) < 5:
        run.step()
    return run


@pytest.mark.parametrize("boosted", [False, True])
def test_a_program_that_finds_no_memory_beside_the_guard_goes_on_without_it(
    program, monkeypatch, boosted
) -> None:
    plain = trained(program, boosted, checked=False)
    monkeypatch.setattr(Hungry, "failures", 0)
    run = trained(program, boosted, checked=True)
    assert Hungry.failures == 1
    assert run.losses == plain.losses, "with the same random numbers"
    assert all(map(torch.equal, run.model.state_dict().values(), plain.model.state_dict().values()))
    assert run.model.calls == plain.model.calls == 5
    assert run.unsound == [], "no boost is to blame"
    assert ("boost" in run.booster.applied) is boosted
    assert run.recorder._faults == set()


def test_a_program_that_finds_no_memory_without_the_guard_either_gets_its_own_error(
    program,
) -> None:
    run = program(Hungry(), boost=planted(times(1.0)))
    run.model.full = lambda: run.job.steps > 0
    with pytest.raises(torch.OutOfMemoryError):
        run.check("boost")
    assert run.unsound == []


def test_of_several_ranks_none_makes_a_call_once_more(program, monkeypatch) -> None:
    monkeypatch.setattr(recorded_calls, "world_size", lambda: 2)
    run = program(Hungry(), boost=planted(times(1.0)))
    run.model.full = lambda: bool(run.checks._recorded.purpose) and run.job.steps > 0
    with pytest.raises(torch.OutOfMemoryError):
        run.check("boost")


# Updates ----------------------------------------------------------------------------------------


def test_without_room_no_copy_of_the_weights_is_kept_during_an_update(
    program, left, monkeypatch
) -> None:
    run = program(boost=planted_update(larger))
    monkeypatch.setattr(updates, "WeightsBefore", lambda *args: pytest.fail("kept"))
    left(7 * PARAMETERS - 1)
    verdict = run.check("boost")
    assert (verdict.passed, verdict.error) == (True, None)
    assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"


def test_with_room_an_update_is_compared_and_no_call_is_recorded(
    program, left, monkeypatch
) -> None:
    run = program(wrong=planted_update(larger))
    monkeypatch.setattr(recorded_calls, "begin", lambda *args: pytest.fail("recorded"))
    left(7 * PARAMETERS)
    verdict = run.check("wrong")
    assert not verdict.passed
    assert verdict.error is not None


@pytest.mark.parametrize("name", ["__init__", "verdict"])
def test_an_update_without_memory_is_not_compared_again(program, monkeypatch, name) -> None:
    run = program(boost=planted_update(lambda optimizer: None))
    calls = failing(monkeypatch, WeightsBefore, name)
    verdict = run.check("boost")
    assert (verdict.passed, verdict.error) == (True, None)
    assert verdict.reason == f"{NOT_COMPARED}too little GPU memory to compare"
    assert (len(calls), run.recorder._faults) == (1, set())


# Calls for others -------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "units"), [("cpu", 1), ("cuda", 0)])
def test_calls_are_handed_out_on_a_cpu_alone(program, monkeypatch, device, units) -> None:
    run = program()
    monkeypatch.setattr(Job, "device", property(lambda job: device))
    given: list[Any] = []
    story = run.checks.give_calls(given.extend)
    taken = 0
    for _ in story:
        run.step()
        taken += 1
    assert (taken, len(given)) == (units, units)
    assert not run.checks._recorded.purpose
    assert run.recorder._faults == set()


def test_a_model_without_parameters_fits(left: Left) -> None:
    left(0)
    assert headroom.lack_for_call(nn.Identity()) is None


# Losses -----------------------------------------------------------------------------------------


@pytest.fixture
def watch(program: Any) -> Iterator[LiveWatch]:
    run = program()
    watching = LiveWatch(run.job, run.booster, run.recorder, wire.LiveOrders(allowed=()))
    yield watching
    watching._unwatch_saving()


def test_of_the_losses_one_number_is_kept(watch, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__bool__", lambda tensor: pytest.fail("waited for"))
        for _ in range(50):
            watch.backward(torch.ones(1000, requires_grad=True) * 2)
    (kept,) = watch._finite.values()
    assert (kept.shape, kept.dtype, kept.requires_grad) == ((), torch.bool, False)
    assert watch.sound()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_told_once(watch, bad) -> None:
    for loss in (torch.ones(()), torch.tensor([1.0, bad, 1.0]), torch.ones(3)):
        watch.backward(loss)
    assert not watch.sound()
    assert watch.sound()
    watch.backward(torch.ones(()))
    assert watch.sound()
