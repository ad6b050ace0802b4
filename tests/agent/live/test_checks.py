"""The guard in a running program: planted boosts that are wrong, that raise, or that are right."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import forked
from agent_paths import INJECT
from flatout_agent import wire
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import fp16_autocast
from flatout_agent.boosts import load as load_real
from flatout_agent.live import calls, checks, guard, headroom, recorded_calls, updates
from flatout_agent.live.guard import NOT_COMPARED
from flatout_agent.live.judge import OURS, Judge
from flatout_agent.live.rechecks import FIRST_RECHECK
from guarded import Made, conv, cross_entropy, images, mlp, vectors
from planted import Program, Shift, assert_unharmed, planted, raising, times

pytestmark = pytest.mark.usefixtures("one_thread")


# Before the first real step -------------------------------------------------------------------


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING])
def test_a_check_leaves_training_as_it_was(program, risk):
    run = program(right=planted(times(1.0), risk), wrong=planted(times(1.02), risk))
    for name, passes in (("right", True), ("wrong", False)):
        verdict = run.check(name)
        assert verdict.passed is passes, verdict.reason
        assert not run.booster.applied
        assert run.unsound == []
    assert_unharmed(run)


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), ValueError("bad\nsecond line")])
def test_one_that_raises_in_the_guard_is_dropped(program, error):
    run = program(raises=planted(raising(error)))
    verdict = run.check("raises")
    assert not verdict.passed
    assert verdict.summary == f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"
    run.step()
    assert_unharmed(run)


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory, as it were")


def test_one_that_raises_in_backward_is_dropped(program):
    run = program(raises=planted(lambda call: lambda x: FailsBackward.apply(call(x))))
    verdict = run.check("raises")
    assert verdict.failed
    assert verdict.reason == "RuntimeError: CUDA out of memory, as it were"
    for _ in range(3):
        run.step()
    assert_unharmed(run)


@pytest.mark.parametrize(("factor", "passes"), [(1e-5, True), (1.0, True), (1e-13, False)])
def test_float16_is_compared_under_its_loss_scale(program, monkeypatch, factor, passes):
    """The last gradients are so small that the boost's own scale does not bring them back."""
    monkeypatch.setattr(fp16_autocast, "_no_use", lambda device: None)
    run = program(**{"fp16-autocast": fp16_autocast})

    def step() -> None:
        x, y = vectors()
        run.backward(factor * cross_entropy(run.model(x), y))
        run.update()

    verdict = run.check("fp16-autocast", step)
    assert verdict.passed is passes, verdict.reason


@pytest.mark.parametrize(
    ("largest", "scale"), [(3e-9, 4096.0), (0.3, 2.0), (5.0, 1.0), (0.0, 1.0), (math.inf, 1.0)]
)
def test_the_scale_is_a_power_of_two_no_larger_than_the_boosts(monkeypatch, largest, scale):
    gradients = [None, torch.tensor([largest, -largest]), torch.zeros(0)]
    assert calls._scale(gradients) == 1.0, "it is off"
    monkeypatch.setattr(fp16_autocast, "loss_scale", lambda: fp16_autocast.FIRST_SCALE)
    assert calls._scale(gradients) == scale


def test_one_that_declines_is_told_as_it_says(program):
    def apply(job: Any, target: Any, params: Any) -> Applied:
        raise Declined("not this model")

    module = types.SimpleNamespace(BOOST=Boost("0", Risk.EXACT, Moment.MODEL), apply=apply)
    verdict = program(no=module).check("no")
    assert (verdict.passed, verdict.reason, verdict.error) == (False, "not this model", None)


@pytest.mark.parametrize(("risk", "passes"), [(Risk.EXACT, True), (Risk.ROUNDING, False)])
def test_what_cannot_be_compared_must_be_exact(program, risk, passes):
    run = program(boost=planted(times(1.0), risk))
    run.model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    verdict = run.check("boost")
    assert verdict.passed is passes
    same = "the same call of the model gave two different results"
    assert verdict.reason == f"{NOT_COMPARED}{same}"


def test_what_a_hook_gathers_for_the_loss_is_compared(program):
    """Here the boost changes only the features, not what the model returns."""

    shift, found = Shift(), []
    body = nn.Sequential(nn.Linear(20, 64), shift, nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 10))
    shift.register_forward_hook(lambda module, args, output: found.append(output))

    run = program(body, wrong=planted(shift.layer, Risk.ROUNDING))

    def step() -> None:
        x, y = vectors()
        found.clear()
        output = run.model(x)
        run.backward(cross_entropy(output, y) + found[-1].square().mean())
        run.update()

    verdict = run.check("wrong", step)
    assert not verdict.passed
    assert len(found) == 1


CALL_PARTS = [
    (recorded_calls, "begin"), (recorded_calls, "finish"), (guard, "reference"),
    (Judge, "_passing"), (headroom, "lack_for_call"), (calls, "not_repeatable"),
]  # fmt: skip
UPDATE_PARTS = [(updates, "WeightsBefore"), (headroom, "lack_for_update")]


def fails_inside_flatout() -> Any:
    """A function of ours with an error in it."""
    found: dict[str, Any] = {}
    text = "def fails(*args, **kwargs):\n    raise AttributeError('planted')\n"
    exec(compile(text, str(OURS / "planted.py"), "exec"), found)
    return found["fails"]


@pytest.mark.parametrize(("place", "name"), CALL_PARTS)
@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING])
def test_what_an_error_of_ours_leaves_unchecked_is_refused(program, monkeypatch, place, name, risk):
    run = program(boost=planted(times(1.0), risk))
    monkeypatch.setattr(run.checks, "backward_ended", safely(run, run.checks.backward_ended))
    monkeypatch.setattr(place, name, fails_inside_flatout())
    verdict = run.check("boost")
    assert not verdict.passed
    if risk is Risk.EXACT:
        assert verdict.reason == f"{NOT_COMPARED}{checks.OUR_FAULT}"
    assert not run.booster.applied


@pytest.mark.parametrize(("place", "name"), CALL_PARTS)
def test_what_is_kept_is_told_as_unchecked_after_one(program, monkeypatch, place, name):
    run = program(boost=planted(times(1.0)))
    run.keep("boost")
    monkeypatch.setattr(run.checks, "backward_ended", safely(run, run.checks.backward_ended))
    if name == "_passing":  # is not asked for here
        name = "_compared"
    monkeypatch.setattr(place, name, fails_inside_flatout())
    verdict = run.ask(run.checks.check_together(run.kept))
    assert (verdict.passed, verdict.reason) == (False, f"{NOT_COMPARED}{checks.OUR_FAULT}")


@pytest.mark.parametrize(("place", "name"), UPDATE_PARTS)
def test_an_update_that_an_error_of_ours_leaves_unchecked_is_refused(
    program, monkeypatch, place, name
):
    run = program(fused=load_real("fused-optimizer"))
    starts = safely(run, run.checks.updates.starts, "optimizer")
    monkeypatch.setattr(run.checks.updates, "starts", starts)
    monkeypatch.setattr(place, name, fails_inside_flatout())
    verdict = run.check("fused")
    assert (verdict.passed, verdict.reason) == (False, f"{NOT_COMPARED}{checks.OUR_FAULT}")


def safely(run, call, place="backward"):
    """As discovery calls it."""
    return lambda *args: run.recorder.safely(place, call, *args)


def test_a_second_model_that_cannot_be_compared_is_not_passed_over(program):
    run = program(boost=planted(times(1.0), Risk.ROUNDING))
    other = mlp()
    run.watch(other)
    other[0].register_forward_hook(lambda module, args, output: output * 1.5)

    def step() -> None:
        x, y = vectors()
        run.backward(cross_entropy(run.model(x) + other(x), y))
        run.update()

    assert not run.check("boost", step).passed


class Policy(nn.Module):
    """Returns an object: a distribution, or one of a class of its own."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.net, self.own = nn.Linear(20, 4), own

    def forward(self, x: torch.Tensor) -> Any:
        policy = torch.distributions.Normal(self.net(x), 1.0)
        return types.SimpleNamespace(policy=policy) if self.own else policy


@pytest.mark.parametrize(("own", "factor", "passes"), [(0, 1.0, 1), (0, 1.05, 0), (1, 1.0, 0)])
def test_a_model_that_returns_an_object_is_not_passed_over(program, own, factor, passes):
    """If it is a distribution, its tensors are compared; else only exact boosts go on."""
    layer = lambda call: lambda x: call(x * factor)  # noqa: E731
    run = program(boost=planted(layer, Risk.ROUNDING))
    policy = Policy(bool(own))
    run.watch(policy)
    run.optimizers.append(torch.optim.SGD(policy.parameters(), 0.01))

    def step() -> None:
        x, y = vectors()
        acted = policy(x)
        policy_loss = (acted.policy if own else acted).log_prob(torch.ones(len(x), 4)).mean()
        run.backward(cross_entropy(run.model(x / factor), y) - policy_loss)
        run.update()

    assert run.check("boost", step).passed is bool(passes)


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_of_many_calls_in_a_step_some_are_compared(program, monkeypatch, factor):
    run = program(boost=planted(times(factor), Risk.ROUNDING))
    repeated: list[Any] = []
    real = guard.reference
    monkeypatch.setattr(guard, "reference", lambda call: repeated.append(call) or real(call))

    def step() -> None:
        loss = sum(cross_entropy(run.model(x), y) for x, y in (vectors() for _ in range(30)))
        run.backward(loss)
        run.update()

    assert run.check("boost", step).passed is (factor == 1.0)
    assert len(set(map(id, repeated))) <= recorded_calls.MOST_OF_A_MODEL


def gan_step(run: Program, generator: nn.Module, judge: nn.Module) -> None:
    """DCGAN's: three backward passes, the generator's call long before its own."""
    fake = generator(torch.randn(16, 4))
    run.backward(F.softplus(-judge(torch.randn(16, 8))).mean())
    run.backward(F.softplus(judge(fake.detach())).mean())
    run.optimizers[0].step()
    run.optimizers[0].zero_grad()
    run.backward(F.softplus(-judge(fake)).mean())
    run.update()


@pytest.mark.parametrize("wrong", ["generator", "judge", "none"])
def test_every_model_of_a_gan_is_compared(program, wrong):
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    at = {"generator": generator, "judge": judge}.get(wrong, nn.Identity())
    run = program(judge, boost=planted(times(1.05), Risk.ROUNDING, at=at))
    run.watch(generator)
    run.optimizers.append(torch.optim.SGD(generator.parameters(), 0.01))
    verdict = run.check("boost", lambda: gan_step(run, generator, judge))
    assert verdict.passed is (wrong == "none"), verdict.reason


def test_accumulated_gradients_are_compared_at_their_first_backward_pass(program):
    run = program(wrong=planted(times(1.02)), right=planted(times(1.0)))

    def step() -> None:
        for _ in range(4):
            x, y = vectors()
            run.backward(cross_entropy(run.model(x), y) / 4)
        run.update()

    assert run.check("right", step).passed
    assert not run.check("wrong", step).passed


def slopes(run: Any, order: int, parameters: bool = False) -> Callable[[], None]:
    """A step whose loss uses derivatives of the model by its inputs, up to this order."""

    def step() -> None:
        x = torch.randn(8, 2, requires_grad=not parameters)
        u = run.model(x)
        target = next(run.model.parameters()) if parameters else x
        slope, loss = u.sum(), u.square().mean()
        for _ in range(order):
            (slope,) = torch.autograd.grad(slope.sum(), target, create_graph=True)
            loss = loss + slope.square().mean()
        run.backward(loss)
        run.update()

    return step


def surface() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def test_gradients_of_gradients_are_compared(program):
    class NoSecond(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    def bent(call: Any) -> Any:
        """The same values and gradients, but another second derivative."""
        return lambda x: call(x + 20 * (x - x.detach()).square())

    run = program(surface(), right=planted(times(1.0)), rounds=planted(times(1.0), Risk.ROUNDING),
                  bent=planted(bent, Risk.ROUNDING),
                  once=planted(lambda call: lambda x: call(NoSecond.apply(x))))  # fmt: skip
    step = slopes(run, 1)
    assert run.check("right", step).passed
    assert run.check("rounds", step).passed
    assert not run.check("bent", step).passed
    assert not run.check("once", step).passed, "it gives no second derivative"


def plane() -> nn.Module:
    return Made(lambda model, x, t: model.layers(torch.cat([x, t], 1)), layers=surface())


def by_several_inputs(run: Program) -> None:
    x, t = (torch.randn(8, 1, requires_grad=True) for _ in range(2))
    (by_x,) = torch.autograd.grad(run.model(x, t).sum(), x, create_graph=True)
    (by_x_and_t,) = torch.autograd.grad(by_x.sum(), t, create_graph=True)
    run.backward(by_x_and_t.square().mean())


def by_weights_of_a_derivative(run: Program) -> None:
    x = torch.randn(8, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(run.model(x).sum(), x, create_graph=True)
    weights = list(run.model.parameters())[:1]
    inner = torch.autograd.grad(slope.square().mean(), weights, create_graph=True)
    run.backward(inner[0].square().sum())


def by_a_backward_pass_with_a_graph(run: Program) -> None:
    x = torch.randn(8, 2, requires_grad=True)
    run.job.graph_created = True  # as discovery notes
    run.model(x).square().mean().backward(create_graph=True)
    run.checks.backward_ended()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize(
    ("make", "backward"),
    [
        (plane, by_several_inputs),
        (surface, by_weights_of_a_derivative),
        (surface, by_a_backward_pass_with_a_graph),
    ],
)
def test_rounding_is_refused_where_derivatives_are_taken_otherwise(program, make, backward):
    run = program(make(), rounds=planted(times(1.0), Risk.ROUNDING))

    def step() -> None:
        backward(run)
        run.update()

    assert not run.check("rounds", step).passed


def test_rounding_is_taken_out_where_third_derivatives_come_later(program):
    run = program(surface(), right=planted(times(1.0)), rounds=planted(times(1.0), Risk.ROUNDING))
    run.keep("right", "rounds")
    later = slopes(run, 2)
    for _ in range(2 * FIRST_RECHECK):
        later()
    assert [item.id for item in run.kept] == ["right"]


@pytest.mark.parametrize(("order", "parameters"), [(2, False), (1, True)])
def test_rounding_is_refused_where_third_derivatives_may_be_used(program, order, parameters):
    """The loss's own gradient is one derivative more. By parameters nobody can tell the order."""
    run = program(surface(), right=planted(times(1.0)), rounds=planted(times(1.0), Risk.ROUNDING))
    step = slopes(run, order, parameters)
    assert run.check("right", step).passed
    assert not run.check("rounds", step).passed
    run.keep("rounds")
    together = run.ask(run.checks.check_together(run.kept), step)
    assert not together.passed, "what is on cannot be compared either"
    assert together.reason == f"{NOT_COMPARED}the loss may use third derivatives"


class Recomputing(nn.Module):
    """Has a reentrant checkpoint, as transformers 4 makes them."""

    def __init__(self, inputs_need_gradients: bool = True) -> None:
        super().__init__()
        self.needs = inputs_need_gradients
        self.first, self.body, self.last = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x) if self.needs else self.first(x).detach()
        return self.last(checkpoint(self.body, hidden, use_reentrant=True))


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("inputs_need_gradients", [True, False])
def test_a_backward_pass_within_a_backward_pass(program, monkeypatch, inputs_need_gradients):
    run = program(
        Recomputing(inputs_need_gradients),
        right=planted(times(1.0), Risk.ROUNDING),
        wrong=planted(times(1.02), Risk.ROUNDING),
    )
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        run.checks.backward_ended()

    monkeypatch.setattr(torch.autograd, "backward", backward)
    right, wrong = run.check("right"), run.check("wrong")
    assert right.passed
    assert right.error is not None, "its gradients were compared"
    assert not wrong.passed
    assert wrong.error == pytest.approx(0.02, rel=0.5)
    assert run.booster.recorder._faults == set()


def test_loss_scaling_that_overflows_is_waited_out(program):
    run = program(wrong=planted(times(1.02)))
    scales = iter([float("inf"), float("inf"), 1.0, float("inf"), 1.0, 1.0])

    def step() -> None:
        x, y = vectors()
        run.backward(cross_entropy(run.model(x), y) * next(scales))
        run.optimizer.zero_grad()
        run.update()

    verdict = run.check("wrong", step)
    assert not verdict.passed
    assert verdict.error == pytest.approx(0.02, rel=0.5)


def test_all_that_is_kept_together(program):
    run = program(
        conv(), images, one=planted(times(1.004), Risk.ROUNDING),
        other=planted(times(1.006), Risk.ROUNDING),
    )  # fmt: skip
    for name in ("one", "other"):
        run.kept.append(run.candidate(name))
        run.booster.on(run.kept[-1].order)
    verdict = run.ask(run.checks.check_together(run.kept))
    assert not verdict.passed, "each alone is below what is seen"
    assert list(run.booster.applied) == ["one", "other"], "both are on as they were"


class Fitting(nn.Module):
    """A net of few units, whose dropout moves the outputs of many examples."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(F.dropout(self.first(x), 0.5, self.training))


def test_masks_that_the_loss_saw_are_not_what_others_are_compared_with(program):
    """Under dropout the loss's gradient fits the call that it came from, and no other."""
    run = program(
        Fitting(),
        lambda: (torch.randn(1024, 16), None),
        **{"fast-dropout": load_real("fast-dropout")},
    )

    def step():
        run.backward(run.model(run.data()[0]).square().mean())
        run.update()

    run.keep("fast-dropout")
    verdicts = [run.ask(run.checks.check_together(run.kept), step) for _ in range(3)]
    run.booster.off("fast-dropout")
    assert [verdict.passed for verdict in verdicts] == [True] * 3, verdicts[0].reason


def test_a_check_ends_when_all_ranks_have_their_answer(program):
    """Another rank has its answer after five units, and refuses by an old measurement."""
    run, asked = program(right=planted(times(1.0))), []
    told = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]

    def agree(value: float, how: str) -> float:
        asked.append(how)
        other = told.pop(0) if told else value
        return max(value, other) if how == "max" else min(value, other)

    run.checks._agree = agree
    assert run.check("right").passed
    assert asked[:6] == ["min"] * 5 + ["max"]
    assert set(asked[6:]) == {"min"}, "the second look ends the check"


# Real processes ---------------------------------------------------------------------------------

PLANT = """
import sys, time, types
import torch
from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.attach.chain import Depth
FAST = [0]
def apply(job, target, params):
    FAST[0] += 1
    def layer(call):
        return lambda *args: fault(call(*args))
    unwrap = job.wrap_call(target, Depth.PRECISION, layer)
    def undo():
        FAST[0] -= 1
        unwrap()
    return Applied(undo)
boost = types.SimpleNamespace(BOOST=Boost("0", Risk.EXACT, Moment.MODEL), apply=apply,
    applies=lambda facts, params: None, promise=lambda facts, params: 2.0)
for name in ("flatout_agent.live.candidates", "flatout_agent.live.recipe",
             "flatout_agent.live.recorded_calls", "flatout_agent.live.updates",
             "flatout_agent.apply.booster"):
    module = sys.modules.get(name)
    if module is not None:
        module.load = lambda boost_id: boost
        if hasattr(module, "names"): module.names = lambda: ["planted"]
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(20, 10)
    def forward(self, x):
        time.sleep(0.0 if FAST[0] else 0.008)  # what the boost makes faster
        return self.body(x)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
steps = int(sys.argv[1])
"""

LOOP = """
for step in range(steps):
    x, y = torch.randn(16, 20), torch.randint(10, (16,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 49: print(step, loss.item())
print(sum(p.double().sum().item() for p in model.parameters()))
"""

BARE = "FAST = [1]\nimport sys, time, torch\n" + PLANT[PLANT.index("class Model") :] + LOOP


def live(folder: Path, text: str, steps: int) -> tuple[forked.Done, list[wire.Record]]:
    records = folder / "records"
    records.mkdir()
    script = folder / "script.py"
    script.write_text(text)
    orders = folder / "orders.json"
    told = wire.LiveOrders(allowed=("planted",))
    orders.write_text(wire.dump(wire.Orders(str(records), (), live=told)))
    variables = {"PYTHONPATH": str(INJECT), wire.ORDERS_ENV: str(orders)}
    done = forked.with_variables([str(script), str(steps)], folder, folder, variables)
    lines = [line for path in records.glob("*.jsonl") for line in path.read_text().splitlines()]
    return done, [wire.record(line) for line in lines]


def bare(folder: Path, steps: int, text: str = BARE) -> str:
    script = folder / "bare.py"
    script.write_text(text)
    done = forked.bare([str(script), str(steps)], folder, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


WATCH = """
import gc
from flatout_agent.live.run import LiveWatch
watch = next(item for item in gc.get_objects() if isinstance(item, LiveWatch))
"""
WRONG_LATER = """
def fault(output): return output * (1.0 if watch.story is not None else 1.5)
"""


UNTIL_DROPPED = LOOP.replace(
    "print(sum", "    if watch.story is None and not FAST[0]: break\nprint(sum"
)
"""How many steps the decisions take depends on the machine."""
MOST_STEPS = 20_000


def decided(records: list[wire.Record]) -> list[wire.Decided]:
    return [record for record in records if isinstance(record, wire.Decided)]


@pytest.mark.thorough
@pytest.mark.slow
def test_in_a_process_a_script_that_compiles_itself_goes_on(tmp_path):
    """Nothing of ours is traced, and the model inside of the compiled one is not a second model."""
    loop = "compiled = torch.compile(model, backend='eager')\n" + LOOP.replace(
        "model(x)", "compiled(x)"
    )
    done, records = live(tmp_path, PLANT + loop, 150)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare(tmp_path, 150, BARE.replace(LOOP, loop))
    assert not [record for record in records if isinstance(record, wire.Fault)]
    (facts,) = [record.facts for record in records if isinstance(record, wire.JobSeen)][:1]
    assert len(facts.models) == 1


@pytest.mark.slow
def test_in_a_process_one_that_becomes_wrong_is_dropped_and_told(tmp_path):
    done, records = live(tmp_path, PLANT + WATCH + WRONG_LATER + UNTIL_DROPPED, MOST_STEPS)
    assert done.returncode == 0, done.stderr
    first, *_, last = decided(records)
    assert (first.verdict, last.verdict) == ("kept", "dropped"), (first, last)
    assert "the guard no longer holds" in last.reason
    assert "were trained under it" in last.reason
    assert [record for record in records if isinstance(record, wire.Fault)] == []


@pytest.mark.slow
def test_in_a_process_the_programs_own_error_is_its_own(tmp_path):
    wrong = "    if step == 900: model(torch.randn(3, 7))\n"
    loop = LOOP.replace("    x, y =", f"{wrong}    x, y =")
    done, _ = live(tmp_path, PLANT + "fault = lambda output: output\n" + loop, 1200)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "flatout_agent" not in done.stderr
    assert "During handling" not in done.stderr
    assert "RuntimeError: mat1 and mat2" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_a_program_that_writes_to_its_batch_is_compared_on_copies(program, factor):
    """As with `batch.div_(255)` between the model's call and the loss."""
    run = program(nn.Sequential(Shift(), mlp()), boost=planted(times(factor), Risk.ROUNDING))

    def step() -> None:
        x, y = vectors()
        loss = cross_entropy(run.model(x), y)
        x.mul_(0.5)
        run.backward(loss)
        run.update()

    verdict = run.check("boost", step)
    assert verdict.error is not None, verdict.reason
    assert verdict.passed is (factor == 1.0), verdict.reason
