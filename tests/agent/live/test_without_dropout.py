"""Dropout that falls differently under a boost does not hide whether the boost is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatout_agent.boost import Risk
from flatout_agent.live.without_dropout import WithoutDropout, can_run_without_dropout
from guarded import Attending, Tagger, words
from planted import planted

RATE = 0.1


class Offsets(nn.Module):
    """A causal transformer block whose dropout takes its numbers from elsewhere in bfloat16.

    So do the kernels for attention on a GPU: those for float32 and for bfloat16 advance the
    generator by different amounts.
    """

    def __init__(self, shifted: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.mixed = nn.Linear(32, 96)
        self.out = nn.Linear(32, 50)
        self.shifted = shifted

    def forward(self, x: torch.Tensor) -> Any:
        query, key, value = self.mixed(self.embed(x)).chunk(3, dim=-1)
        if torch.is_autocast_enabled("cpu"):
            torch.rand(7)
        scores = query @ key.transpose(-2, -1) / 32**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + self.shifted)
        weights = F.dropout(scores.masked_fill(later, -1e9).softmax(-1), RATE, self.training)
        return self.out(F.dropout(weights @ value, RATE, self.training)).float()


def autocast(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call(*args)

    return run


def longer(call: Callable[..., Any]) -> Callable[..., Any]:
    """All outputs are 1 % too large."""
    return lambda *args: autocast(call)(*args) * 1.01


def shows_more(call: Callable[..., Any]) -> Callable[..., Any]:
    """So they are, and the gradients of the same loss are right."""

    def run(*args: Any) -> Any:
        output = autocast(call)(*args)
        return output + 0.01 * output.detach()

    return run


def sees_later(call: Callable[..., Any]) -> Callable[..., Any]:
    """The causal mask is shifted by one."""

    def run(*args: Any) -> Any:
        model = _models[-1]
        model.shifted = 1
        try:
            return autocast(call)(*args)
        finally:
            model.shifted = 0

    return run


def without_bias(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        bias = _models[-1].out.bias
        before = bias.detach().clone()
        bias.data.zero_()
        try:
            return autocast(call)(*args)
        finally:
            bias.data.copy_(before)

    return run


_models: list[Any] = []


def offsets() -> nn.Module:
    model = Offsets()
    nn.init.normal_(model.out.bias)
    _models.append(model)
    return model


def test_rounding_passes_where_dropout_falls_differently(program: Any) -> None:
    run = program(offsets(), words, half=planted(autocast, Risk.ROUNDING))
    verdict = run.check("half")
    assert verdict.passed, verdict.reason
    assert verdict.reason.endswith("of batch noise, without dropout")


@pytest.mark.parametrize("wrong", [longer, shows_more, sees_later, without_bias])
@pytest.mark.parametrize("draws", [False, True])
def test_what_is_wrong_is_found_beside_other_dropout(program: Any, wrong: Any, draws: bool) -> None:
    boost = planted(wrong, Risk.ROUNDING, redraws=draws)
    run = program(offsets(), words, wrong=boost)
    verdict = run.check("wrong")
    assert not verdict.passed
    assert "without dropout" in verdict.reason


def test_what_drops_more_is_refused_by_the_rule_for_other_draws(program: Any) -> None:
    """Without dropout nothing is wrong with it."""

    def drops_more(call: Any) -> Any:
        def run(*args: Any) -> Any:
            output = autocast(call)(*args)
            return F.dropout(output, 0.9)

        return run

    run = program(offsets(), words, more=planted(drops_more, Risk.ROUNDING))
    assert not run.check("more").passed
    run = program(offsets(), words, more=planted(drops_more, Risk.ROUNDING, redraws=True))
    assert not run.check("more").passed


@pytest.mark.gpu
@pytest.mark.parametrize("right", [True, False])
def test_bfloat16_is_judged_on_a_gpu_where_its_kernels_draw_otherwise(
    program: Any, right: bool
) -> None:
    """As examples/bert on an H200, whose gradient seemed to be off by 14 % of the batch noise."""

    def there() -> tuple[torch.Tensor, torch.Tensor]:
        x, y = words()
        return x.cuda(), y.cuda()

    def autocast_there(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                output = call(*args).float()
            return output if right else output * 1.01

        return run

    boost = planted(autocast_there, Risk.ROUNDING)
    run = program(Attending(dropout=RATE).cuda(), there, half=boost)
    verdict = run.check("half")
    assert verdict.passed is right, verdict.reason


HEADS = nn.MultiheadAttention(8, 2, dropout=0.5)
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "in place": lambda x: F.dropout(x.clone(), p=0.5, inplace=True),
    "nn.Dropout": nn.Dropout(0.5),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, True),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "attention by place": lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.5),
    "MultiheadAttention": lambda x: HEADS(x, x, x)[0],
    "transformer": Attending(dropout=0.5),
    "lstm": nn.LSTM(8, 8, 2, dropout=0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_dropout_is_still(name: str) -> None:
    call = CALLS[name]
    x = torch.randint(50, (4, 6)) if name == "transformer" else torch.randn(4, 6, 8)

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        result: Any = call(x)
        found: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return found

    assert not torch.equal(drawn(1), drawn(2))
    with WithoutDropout() as still:
        assert torch.equal(drawn(1), drawn(2))
    assert still.met
    assert not torch.equal(drawn(1), drawn(2)), "and only inside"


def test_a_rate_of_zero_is_no_dropout() -> None:
    x = torch.randn(4, 6, 8)
    with WithoutDropout() as still:
        nn.MultiheadAttention(8, 2)(x, x, x)
        F.dropout(x, 0.0)
    assert not still.met


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_code_is_left_alone() -> None:
    assert can_run_without_dropout(Tagger())
    compiled: Any = torch.compile(nn.Linear(2, 2))
    compiled = nn.Sequential(compiled)
    assert not can_run_without_dropout(compiled)
    in_place = nn.Sequential(nn.Linear(2, 2))
    in_place[0].compile()
    assert not can_run_without_dropout(in_place)
