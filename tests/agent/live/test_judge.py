"""Of several boosts in question, the wrong ones are found from one recorded call."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boost import Applied, Boost, Moment, Risk
from flatout_agent.boosts import load as load_real
from flatout_agent.job import Job
from flatout_agent.live import guard
from planted import assert_unharmed, planted, raising, times

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("wrong", [(), ("a",), ("c",), ("b", "d")])
def test_of_several_boosts_only_the_wrong_ones_are_refused(program, wrong):
    names = ("a", "b", "c", "d")
    run = program(**{n: planted(times(1.02 if n in wrong else 1.0)) for n in names})
    checked = run.check_all(*names)
    assert set(checked.refused) == set(wrong)
    assert [candidate.id for candidate in checked.sound] == [n for n in names if n not in wrong]
    assert checked.verdict.passed
    assert not run.booster.applied
    assert_unharmed(run)


def test_exact_boosts_are_judged_by_their_own_rule_beside_those_that_round(program):
    """A bias of 1 % hides in no rounding."""
    run = program(exact=planted(times(1.01)), rounds=planted(times(1.0), Risk.ROUNDING))
    checked = run.check_all("exact", "rounds")
    assert list(checked.refused) == ["exact"]
    assert [candidate.id for candidate in checked.sound] == ["rounds"]


def test_an_exact_boost_that_reorders_much_may_pass_beside_those_that_round(program):
    def noisy(call: Any) -> Any:
        """Off by some 1e-4, with either sign: too much for a reordering of this small net."""

        def run(x: Any) -> Any:
            output = call(x)
            signs = torch.ones_like(output)
            signs.view(-1)[::2] = -1
            return output * (1 + 2e-4 * signs)

        return run

    alone = program(much=planted(noisy))
    assert not alone.check("much").passed
    run = program(much=planted(noisy), rounds=planted(times(1.0), Risk.ROUNDING))
    assert run.check_all("much", "rounds").refused == {}


def test_one_that_raises_does_not_damn_the_others(program):
    run = program(raises=planted(raising(RuntimeError("no kernel"))), right=planted(times(1.0)))
    checked = run.check_all("raises", "right")
    assert checked.refused["raises"].failed
    assert [candidate.id for candidate in checked.sound] == ["right"]


def test_an_update_and_a_call_are_checked_in_the_same_step(program):
    run = program(update=load_real("fused-optimizer"), call=planted(times(1.02)))
    checked = run.check_all("update", "call")
    assert list(checked.refused) == ["call"]
    assert [candidate.id for candidate in checked.sound] == ["update"]
    assert_unharmed(run)


def test_what_passes_by_any_noise_floor_needs_none(program, monkeypatch):
    run = program(right=planted(times(1.0)), wrong=planted(times(1.02)))
    measured = []
    real = guard.noise_floor

    def noise_floor(*args: Any, **kwargs: Any) -> Any:
        measured.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(guard, "noise_floor", noise_floor)
    assert run.check("right").passed
    assert measured == []
    assert not run.check("wrong").passed
    assert measured


def test_what_fails_by_any_noise_floor_is_compared_once(program, monkeypatch):
    """What rounding the weights does is not measured for it, and there is no second look."""
    run = program(wrong=planted(times(3.0), Risk.ROUNDING), right=planted(times(1.0)))
    rounded, looks = [], []
    real, judge = guard._of_rounding, run.checks._judge.verdict
    monkeypatch.setattr(guard, "_of_rounding", lambda *a: rounded.append(a) or real(*a))
    monkeypatch.setattr(run.checks._judge, "verdict", lambda c: looks.append(c) or judge(c))
    checked = run.check_all("wrong", "right")
    assert list(checked.refused) == ["wrong"]
    assert rounded == []
    assert len(looks) == 1


def test_one_that_does_nothing_beside_another_is_compared_without_it(program):
    """`hidden` is wrong, and finds nothing to do while `wrong` is on."""
    on: set[str] = set()

    def boost(name: str) -> Any:
        module = planted(times(1.0))

        def apply(job: Job, target: Any, params: Any) -> Applied:
            on.add(name)
            acts = name == "wrong" or "wrong" not in on
            applied = planted(times(1.05 if acts else 1.0)).apply(job, target, params)

            def undo() -> None:
                on.discard(name)
                applied.undo()

            return Applied(undo, lambda: (acts, "" if acts else "nothing to do"))

        module.apply = apply
        return module

    run = program(wrong=boost("wrong"), hidden=boost("hidden"), right=planted(times(1.0)))
    checked = run.check_all("wrong", "hidden", "right")
    assert set(checked.refused) == {"wrong", "hidden"}


@pytest.mark.parametrize("outside", [True, False])
def test_whether_a_boost_of_the_loss_takes_hold_is_not_known_after_a_call(program, outside):
    def apply(job: Any, target: Any, params: Any) -> Applied:
        return Applied(lambda: None, lambda: (False, "no loss was seen"))

    identity = Boost("0", Risk.EXACT, Moment.MODEL, outside_calls=outside)
    run = program(loss=types.SimpleNamespace(BOOST=identity, apply=apply))
    assert run.check_all("loss").idle == ({} if outside else {"loss": "no loss was seen"})


def off_by(share: float, anew: bool) -> Any:
    """A layer whose gradients are off: at random in each batch, or in one direction in all."""

    def layer(call: Any) -> Any:
        def run(x: Any) -> Any:
            output = call(x)
            seed = int(x.detach().double().sum().mul(1e6)) % 100_000 if anew else 7
            rows = output if anew else output[:1]
            noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
            output.register_hook(lambda gradient: gradient + share * gradient.std() * noise)
            return output * 1.0

        return run

    return layer


def smooth() -> nn.Module:
    """A net that amplifies no rounding, as ReLUs do that switch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 64), nn.Tanh(), nn.Linear(64, 50))


def many() -> tuple[torch.Tensor, torch.Tensor]:
    """So many numbers that errors at random leave the gradient's length as it is."""
    return torch.randn(256, 200), torch.randint(50, (256,))


@pytest.mark.parametrize(("share", "anew"), [(0.06, True), (0.025, False)])
def test_an_error_above_the_limit_of_rounding_passes_if_it_averages_out(program, share, anew):
    run = program(smooth(), many, noisy=planted(off_by(share, anew), Risk.ROUNDING))
    verdict = run.check("noisy")
    assert 0.03 < (verdict.error or 0.0) < 0.1
    assert verdict.passed is anew, verdict.reason
    assert ("averages out" in verdict.reason) is anew


def test_an_error_that_averages_out_has_its_limit(program):
    run = program(smooth(), many, noisy=planted(off_by(0.3, anew=True), Risk.ROUNDING))
    assert not run.check("noisy").passed
