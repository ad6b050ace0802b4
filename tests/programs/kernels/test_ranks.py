"""All-reduce between processes: gloo for real, and ranks that fail or never come."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout_programs.kernels import ranks
from flatout_programs.kernels.kernel import Setup, Slice


def setup(**changes: Any) -> Setup:
    facts = {"torch": torch, "quick": False, "accelerators": (), "cores": 2}
    return Setup(**{**facts, **changes})


def test_numbers_of_ranks() -> None:
    assert [ranks.counts(most) for most in (2, 3, 6, 8)] == [[2], [2, 3], [2, 4, 6], [2, 4, 8]]


def test_what_there_is_to_measure() -> None:
    found = {one.id: one for one in ranks.kernels(setup())}
    assert set(found) == {"all-reduce-cpu", "all-reduce-cpu-latency"}
    assert all(one.device == "cpu" and not one.impossible for one in found.values())
    assert ranks.kernels(setup(cores=1)) == []


def test_two_gpus() -> None:
    cards = setup(accelerators=("cuda:0", "cuda:1", "mps"), cores=1)
    found = {one.id: one for one in ranks.kernels(cards)}
    assert set(found) == {"all-reduce", "all-reduce-latency"}
    if not torch.distributed.is_nccl_available():
        assert found["all-reduce"].impossible == "this torch was built without nccl"


def test_torch_without_its_distributed_part() -> None:
    without = SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False))
    assert "without torch.distributed" in ranks.kernels(setup(torch=without))[0].impossible


def test_quick_leaves_it_out_unless_it_is_asked_for() -> None:
    kernel = ranks.kernels(setup())[0]
    assert not setup(quick=True).has_time_for(kernel)
    assert setup().has_time_for(kernel)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ranks.LARGE, "gloo", ranks.MIB)
    ((size, bus),) = ranks.bandwidths(setup(), "gloo", [2], Slice(0.2))
    assert size == "2 ranks, 1 MiB"
    assert 0.001 < bus < 1000
    ((size, us),) = ranks.latencies(setup(), "gloo", [2], Slice(0.2))
    assert size == "2 ranks, 1 KiB"
    assert us > 1


def program(folder: Path, text: str) -> Path:
    path = folder / "rank.py"
    path.write_text(f"import json, sys, time\nrank = json.loads(sys.argv[1])['rank']\n{text}\n")
    return path


def test_a_rank_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "if rank == 1: sys.exit('RuntimeError: no address')\ntime.sleep(600)"
    monkeypatch.setattr(ranks, "PROGRAM", program(tmp_path, text))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 of 2: RuntimeError: no address"):
        ranks.all_reduce_s(setup(), "gloo", 2, 1024, 0.1)
    assert time.monotonic() - began < 120  # and not 600


@pytest.mark.slow
def test_ranks_that_never_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PROGRAM", program(tmp_path, "time.sleep(600)"))
    monkeypatch.setitem(ranks.START_S, False, 0.5)
    with pytest.raises(RuntimeError, match="rank 0 of 2: did not answer in time"):
        ranks.all_reduce_s(setup(), "gloo", 2, 1024, 0.1)


def test_an_end_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PROGRAM", program(tmp_path, "print('bye')"))
    with pytest.raises(RuntimeError, match="rank 0 gave no answer"):
        ranks.all_reduce_s(setup(), "gloo", 2, 1024, 0.1)
