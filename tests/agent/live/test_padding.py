"""The Guard on trim-padding: kept where padding does not count, never without a comparison."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boosts import fast_dropout, fused_loss
from flatout_agent.boosts import trim_padding as boost
from flatout_agent.live import judge
from flatout_agent.live.guard import NOT_COMPARED
from flatout_agent.speedups import padding
from guarded import Attending
from planted import Program

FULL, LABELS = 64, 50
CALLED: list[int] = []
"""Rows of each call. Outside the model: the Guard takes back what a repeated call notes there."""


def batch(longest: int = 22) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and a label for each, padded to FULL."""
    lengths = torch.randint(3, longest, (16,))
    used = torch.arange(FULL) < lengths[:, None]
    labels = torch.where(used, torch.randint(LABELS, (16, FULL)), -100)
    return torch.randint(1, LABELS, (16, FULL)) * used, labels


def words(longest: int = 22) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(longest)[0], torch.randint(10, (16,))


class Pooled(nn.Module):
    """`masked`: the mean over the words, else over all positions."""

    def __init__(self, masked: bool, dropout: float) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(LABELS, 24), nn.Linear(24, 10)
        self.drop, self.masked = nn.Dropout(dropout), masked

    def forward(self, x: Any) -> Any:
        CALLED.append(len(x))
        used = (x != 0)[..., None] if self.masked else torch.ones(*x.shape, 1)
        found = self.drop(self.embed(x)) * used
        return self.out(torch.tanh(found.sum(1) / used.sum(1)))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("longest", [22, 50])
def test_the_guard_passes_it_only_where_padding_does_not_count(program, longest, masked, dropout):
    run: Program = program(Pooled(masked, dropout), lambda: words(longest))
    run.boosts["trim-padding"] = boost
    verdict = run.check("trim-padding")
    assert verdict.passed is masked, verdict.reason


def test_outputs_are_compared_where_the_loss_uses_them(program, monkeypatch):
    class Causal(Attending):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.out(self.body(self.embed(x), mask, is_causal=True))

    run: Program = program(Causal(), batch)
    run.boosts["trim-padding"] = boost
    verdict = run.check("trim-padding")
    assert verdict.passed, verdict.reason
    rounded_up = padding._rounded_up
    monkeypatch.setattr(
        padding, "_rounded_up", lambda longest, full: rounded_up(longest // 2, full)
    )
    assert not run.check("trim-padding").passed


@pytest.mark.parametrize("activations", [0, 9])
@pytest.mark.parametrize("used", [True, False])
def test_a_loss_that_the_model_keeps_is_compared_if_the_program_uses_it(program, used, activations):
    class Balanced(Pooled):
        """Keeps a second loss, as mixtures of experts do; here padding counts in it."""

        def forward(self, x: Any) -> Any:
            self.extra = self.embed(x).square().mean()
            self.seen = [self.embed.weight[1:] * 2 for _ in range(activations)]
            return super().forward(x) + sum(seen.sum() for seen in self.seen)

    run: Program = program(Balanced(True, 0.0), words)
    run.boosts["trim-padding"] = boost

    def step() -> None:
        x, y = words()
        loss = nn.functional.cross_entropy(run.model(x), y)
        run.backward(loss + run.model.extra if used else loss)
        run.update()

    verdict = run.check("trim-padding", step)
    assert verdict.passed is not used, verdict.reason


def test_what_the_guard_cannot_compare_is_not_kept(program):
    run: Program = program(Pooled(True, 0.0), words)
    run.boosts["trim-padding"] = boost
    run.model.embed.register_forward_hook(lambda module, args, output: output * 1.5)
    assert not run.check("trim-padding").passed


def test_it_is_compared_on_a_batch_with_padding(program):
    taken = []

    def sometimes() -> tuple[torch.Tensor, torch.Tensor]:
        taken.append(words())
        return taken[-1] if len(taken) % 3 == 0 else (taken[-1][0].clamp(min=1), taken[-1][1])

    run: Program = program(Pooled(False, 0.0), sometimes)
    run.boosts["trim-padding"] = boost
    assert not run.check("trim-padding").passed


def test_a_model_that_cannot_be_called_without_dropout_does_without_it(program, monkeypatch):
    monkeypatch.setattr(judge, "can_run_without_dropout", lambda model: False)
    run: Program = program(Pooled(True, 0.2), words)
    run.boosts["trim-padding"] = boost
    verdict = run.check("trim-padding")
    assert not verdict.passed
    assert verdict.reason == f"{NOT_COMPARED}the model cannot be called without dropout"


def test_it_is_refused_alone_of_several(program):
    run: Program = program(Pooled(False, 0.2), words)
    run.boosts |= {"trim-padding": boost, "fast-dropout": fast_dropout, "fused-loss": fused_loss}
    assert set(run.check_all(*run.boosts).refused) == {"trim-padding"}


def test_rows_in_parts_give_the_same(program, monkeypatch):
    monkeypatch.setattr(padding, "_faster", lambda *given: True)
    lengths = torch.linspace(3, FULL, 16).square().div(FULL).ceil().long()

    def uneven() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(1, LABELS, (16, FULL)) * (torch.arange(FULL) < lengths[:, None])
        return ids, torch.randint(10, (16,))

    CALLED.clear()
    run: Program = program(Pooled(True, 0.2), uneven)
    run.boosts["trim-padding"] = boost
    verdict = run.check("trim-padding")
    assert verdict.passed, verdict.reason
    assert set(CALLED) == {16, 4}
