"""The training loop under the guard that several of these tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boosts import load as load_real
from guarded import mlp, vectors
from planted import Program


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(model: nn.Module | None = None, data: Any = vectors, **boosts: Any) -> Program:
        torch.manual_seed(0)

        def load(name: str) -> Any:
            return boosts[name] if name in boosts else load_real(name)

        for module in ("live.recorded_calls", "live.updates", "apply.booster"):
            monkeypatch.setattr(f"flatout_agent.{module}.load", load)
        run = Program(tmp_path, model if model is not None else mlp(), data, **boosts)
        started.append(run)
        return run

    yield start
    for run in started:
        run.recorder._file.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
