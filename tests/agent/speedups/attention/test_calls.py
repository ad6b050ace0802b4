"""Scores that are put off: whoever asks for them gets what the program would have computed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import attention_styles as styles
from attention_results import (
    Boosted,
    assert_same,
    inputs,
    is_deferred,
    nothing_is_left,
    results,
)
from attention_styles import LENGTH, WIDTH, Annotated, Drawn, NanoGPT, ViT
from flatout_agent.boosts import fast_dropout
from flatout_agent.job import Job
from flatout_agent.speedups.attention import watch


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few scores there are."""
    monkeypatch.setattr(watch, "SMALLEST", 1)
    yield
    assert nothing_is_left()


# What leaves a module ---------------------------------------------------------------------------


def test_weights_that_are_stored_are_computed_when_looked_at() -> None:
    model, x = Annotated(), inputs()
    model(x)
    before = model.attn
    with Boosted(model) as boosted:
        out = model(x)
        held = model.attn
        assert is_deferred(held)
        assert held.shape == before.shape
        with pytest.raises(RuntimeError, match="deepcopy protocol"):
            copy.deepcopy(held)
        assert torch.equal(held, before)
        assert type(held) is torch.Tensor
        (held.sum() + out.sum()).backward()
        assert model.qkv.weight.grad is not None
        assert boosted.applied.engaged() == (False, "the attention weights are looked at")
        model(x)
        last = model.attn
        assert is_deferred(last)
    assert type(last) is torch.Tensor  # undone


def test_masks_may_change_before_stored_weights_are_looked_at() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))
            self.mask = torch.zeros(LENGTH, LENGTH)

        def forward(self, x: Any) -> Any:
            x = x * self.one
            y, self.attn = styles.attention(x, x + 0, x, mask=self.mask.triu() + 1 - self.mask)
            scores = x @ x.transpose(1, 2) + self.mask
            self.last = scores.softmax(-1)
            return y + self.last @ x

    model, x = Masked(), inputs()
    model(x)
    before = model.last
    with Boosted(model) as boosted:
        model(x)
        assert is_deferred(model.last)
        assert boosted.fused() == 2
        model.mask.fill_(7.0)
        model.mask[0, 0] = -3.0
        assert torch.equal(model.last, before)


def test_evaluation_stores_computed_weights_and_is_left_alone_then() -> None:
    model, x = Annotated(), inputs()
    with torch.no_grad(), Boosted(model) as boosted:
        model(x)
        assert type(model.attn) is torch.Tensor
        boosted.step()
        count = boosted.fused()
        model(x)
        assert boosted.fused() == count
        again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        assert torch.equal(again.attn, model.attn)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("style", [NanoGPT, Annotated, styles.Custom])
def test_activation_checkpointing(style: Any, reentrant: bool) -> None:
    model, x = style(), inputs()
    with Boosted(model) as boosted:
        before = results(model, x)
        for _ in range(4):
            again = results(model, x, lambda x: model.out(model(x)))
            model.zero_grad()
            x.grad = None
            torch.manual_seed(1)
            checkpoint(lambda x: model.out(model(x)), x, use_reentrant=reentrant).sum().backward()
            boosted.step()
        assert_same(before, results(model, x))
        assert again[0].shape == x.shape
        assert model.qkv.weight.grad is not None


def test_a_write_to_an_operand_comes_after_what_was_written_before() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            k = (x * self.one).detach()
            scores = x @ k.transpose(1, 2)
            k.mul_(2)
            k[0] = 0
            other = scores * 2
            scores.mul_(3)
            return (scores + other).softmax(-1) @ k

    model, x = Writes(), inputs().detach()
    before = model(x)
    with Boosted(model):
        assert torch.equal(model(x), before)


def test_an_error_is_the_programs_own() -> None:
    model = Drawn(lambda scores: scores.masked_fill(torch.ones(7, 9) > 0, -1e9))
    with pytest.raises(RuntimeError) as before:
        model(inputs(3, 2, 5, 4))
    with Boosted(model), pytest.raises(RuntimeError) as after:
        model(inputs(3, 2, 5, 4))
    assert str(before.value) == str(after.value)


# Others that look in ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:Anomaly")
def test_what_traces_and_transforms_sees_the_program_as_written() -> None:
    model, x = ViT(), inputs().detach()
    wanted = model(x)
    torch._dynamo.reset()
    with Boosted(model) as boosted:
        torch.func.vmap(model)(x[None])
        torch.func.functional_call(model, dict(model.named_parameters()), x)
        assert boosted.fused() == 1  # a plain call
        torch.func.grad(lambda x: model(x).sum())(x)
        torch.func.jvp(model, (x,), (x,))
        torch.jit.trace(model, x, check_trace=False)
        torch.compile(model, backend="aot_eager")(x).sum().backward()
        with torch.autograd.detect_anomaly():
            model(x).sum().backward()
        with torch.utils.flop_counter.FlopCounterMode(display=False):
            model(x)
        assert boosted.fused() == 1
        with torch.device("cpu"):
            model(x)
        assert boosted.fused() == 2
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        assert torch.equal(copied(x), wanted)
        assert list(copied.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("first", [True, False])
def test_with_fast_dropout_in_any_order(first: bool) -> None:
    originals = (functional.dropout, functional.scaled_dot_product_attention)
    model, x = NanoGPT(0.25), inputs(8, 64, WIDTH)
    job = Job()
    if first:
        other = fast_dropout.apply(job, model, {})
    with Boosted(model) as boosted:
        if not first:
            other = fast_dropout.apply(job, model, {})
        model(x).sum().backward()
        assert not boosted.fused()
        assert (other.engaged() or (False,))[0]
        model.eval()(x).sum().backward()
        assert boosted.fused() == 1
        if first:
            other.undo()
            model(x)
            assert boosted.fused() == 2
    if not first:
        other.undo()
    assert (functional.dropout, functional.scaled_dot_product_attention) == originals


def test_a_hook_may_take_the_weights() -> None:
    model, x, seen = ViT(), inputs(), []
    model.drop.register_forward_hook(lambda module, args, out: seen.append(out.mean()))
    before = results(model, x)
    with Boosted(model):
        assert_same(before, results(model, x))
    assert torch.equal(seen[0], seen[1])


def test_only_modules_that_attend_are_wrapped() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), ViT(), nn.TransformerEncoderLayer(WIDTH, 4))
    with Boosted(model):
        wrapped = [name for name, m in model.named_modules() if m._compiled_call_impl is not None]
        assert wrapped == ["1"]
    assert all(module._compiled_call_impl is None for module in model.modules())
