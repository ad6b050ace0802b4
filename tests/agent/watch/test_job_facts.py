"""What is written down about a job changes nothing in it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flatout_agent.watch.job_facts import loader_facts


def test_the_program_may_still_choose_how_its_processes_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for its method, Python would fix the default: `set_start_method` raises from then."""
    default = multiprocessing.context._default_context  # type: ignore[attr-defined]
    monkeypatch.setattr(default, "_actual_context", None)
    data = TensorDataset(torch.ones(4))
    usual = multiprocessing.get_all_start_methods()[0]
    assert loader_facts(DataLoader(data)).start_method == usual
    multiprocessing.set_start_method("spawn")
    assert loader_facts(DataLoader(data)).start_method == "spawn"
    chosen = DataLoader(data, num_workers=1, multiprocessing_context="forkserver")
    assert loader_facts(chosen).start_method == "forkserver"
