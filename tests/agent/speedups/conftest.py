"""A model under bfloat16 autocast, as on a CPU that is made up."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn
from torch.nn import functional

from flatout_agent.boosts import bf16_autocast
from flatout_agent.job import Job
from flatout_agent.speedups import precision
from flatout_agent.speedups.precision import Bf16Support

NAMES = ("scaled_dot_product_attention", "conv1d", "conv2d", "conv3d")


@pytest.fixture
def boosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Puts a model under the boost, on a CPU with these instructions, until the test's end."""
    originals = [getattr(functional, name) for name in NAMES]
    undos: list[Callable[[], None]] = []

    def apply(model: nn.Module, instructions: Any = "AVX512_BF16") -> Any:
        support = Bf16Support(True, "native (fake)", instructions)
        monkeypatch.setattr(precision, "native_bf16", lambda device: support)
        job = Job()
        job.models.append(model)
        applied = bf16_autocast.apply(job, model, {})
        undos.append(functools.cache(applied.undo))  # also where a test does it before
        return dataclasses.replace(applied, undo=undos[-1])

    yield apply
    for undo in undos:
        undo()
    assert [getattr(functional, name) for name in NAMES] == originals
