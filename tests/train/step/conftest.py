"""Compilation as tests want it: without a C++ compiler, and without what others have compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flatout_train.step import compiling

REAL: Any = torch.compile


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    assert not torch._dynamo.config.suppress_errors
    assert not torch._functorch.config.force_non_lazy_backward_lowering


@pytest.fixture
def traced(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real dynamo with a backend that needs no C++ compiler: seconds become milliseconds."""
    monkeypatch.setattr(torch, "compile", lambda call, **_: REAL(call, backend="aot_eager"))
    monkeypatch.setattr(compiling, "missing", lambda *_: None)
