"""A model under sdpa-attention, and what it computes there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attention_styles import LENGTH, WIDTH
from flatout_agent.boost import Applied
from flatout_agent.boosts import sdpa_attention as boost
from flatout_agent.job import Job
from flatout_agent.speedups.attention.calls import machinery

UNWRAP = torch._functorch.utils.unwrap_dead_wrappers


def nothing_is_left() -> bool:
    return torch._functorch.utils.unwrap_dead_wrappers is UNWRAP and not machinery().lazy


class Boosted:
    """A model under the boost, and the boost itself."""

    def __init__(self, model: nn.Module) -> None:
        self.job = Job()
        self.job.models.append(model)
        self.applied: Applied = boost.apply(self.job, model, {})

    def step(self) -> None:
        self.job.steps += 1
        for callback in self.job.step_callbacks:
            callback()

    def fused(self) -> int:
        answer = self.applied.engaged()
        assert answer is not None
        return int(answer[1].split(" attentions")[0].split()[-1]) if answer[0] else 0

    def __enter__(self) -> Boosted:
        return self

    def __exit__(self, *_: object) -> None:
        self.applied.undo()


def inputs(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(*(shape or (3, LENGTH, WIDTH)), generator=generator, requires_grad=True)


def results(model: nn.Module, x: torch.Tensor, call: Any = None) -> list[torch.Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    torch.manual_seed(1)
    out = (call or model)(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.device)
    wanted = [x, *model.parameters()]
    return [out.detach(), *torch.autograd.grad((out.float() * weights).sum(), wanted)]


def assert_close(one: list[torch.Tensor], other: list[torch.Tensor], share: float = 2e-6) -> None:
    size = max(float(a.norm()) for a in one)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert float((a - b).norm()) <= share * max(float(a.norm()), 0.01 * size)


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def is_deferred(item: Any) -> bool:
    return type(item) is machinery().deferred
