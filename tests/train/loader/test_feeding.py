"""How many workers, and why none."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import flatout
from flatout_agent.speedups.workers import worker_safety
from flatout_train.loader import caching, feeding
from flatout_train.loader.fetching import Probe


def enough(seconds: float, batches: int = 1000, **other: Any) -> tuple[int, str]:
    given = {"share": 16, "accelerated": True, "method": "fork", "busy": 1.0, **other}
    return feeding.enough(Probe(seconds, given.pop("busy"), None), batches, **given)


def test_workers_follow_from_cost_and_cores() -> None:
    assert enough(0.0005) == (0, "a batch takes 0.5 ms to load: a worker would not be faster")
    assert enough(0.005)[0] == 3
    assert enough(1.0) == (15, "a batch takes 1000.0 ms to load, 16 cores")
    assert enough(1.0, accelerated=False)[0] == 4
    assert enough(1.0, share=2, accelerated=False)[0] == 1
    assert enough(1.0, share=1)[0] == 0
    assert enough(1.0, share=1, busy=0.01)[0] == 1
    assert enough(1.0, share=2, busy=0.25)[0] == 4
    assert enough(1.0, share=2, busy=0.6)[0] == 1
    assert enough(0.01, batches=10)[0] == 0
    assert "would not pay off" in enough(0.01, batches=10)[1]
    assert enough(0.01, batches=100, method="spawn")[0] == 0
    workers, reason = enough(1.0, under_way=1000, free=2500)
    assert workers == 2
    assert "shared memory" in reason


class Slow(Dataset):
    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.randn(40, 40) @ torch.randn(40, 40)
        return torch.randn(60_000)


def test_auto_starts_workers_when_the_first_batch_was_costly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "usable_cores", lambda: 8)
    loader = flatout.loader(Slow(), 64)
    batches = iter(loader)
    first = next(batches)
    assert int(loader.notes["workers"].split(":")[0]) >= 2
    assert loader.notes["cache"] == "no: dataset[0] draws random numbers"
    assert torch.equal(first, next(iter(flatout.loader(Slow(), 64, workers=0, cache=False))))
    assert len({next(batches).shape for _ in range(3)}) == 1


def test_cheap_samples_get_none() -> None:
    loader = flatout.loader([torch.ones(1)] * 100, 2)
    assert len(list(loader)) == 50
    assert loader.notes["workers"].startswith("0: a batch takes")


def test_where_shared_memory_is_small_the_first_batch_is_loaded_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_safety, "_free_shared_memory", lambda: 64 << 20)
    monkeypatch.setattr(caching, "shared_memory", lambda: 64 << 20)
    monkeypatch.setattr(feeding, "usable_cores", lambda: 8)
    loader = flatout.loader(Slow(), 256)
    iter(loader).__next__()
    assert loader.notes["workers"].startswith("0: a batch takes")
    assert "hold no more" in loader.notes["workers"]


@pytest.mark.parametrize("held", ["file", "iterator"])
def test_what_a_worker_must_not_share_keeps_loading_here(held: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with (tmp_path / "data").open() as file:
        dataset = Slow(file if held == "file" else (index for index in range(3)))
        loader = flatout.loader(dataset, 4)
        assert loader.notes["workers"].startswith("0: dataset.held is an")


def test_where_workers_cannot_start_the_process_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: Any) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.context.Process, "start", refuse)
    loader = flatout.loader([torch.ones(1)] * 6, 2, workers=2)
    assert len(list(loader)) == 3
    assert "could not be started (OSError: Resource" in loader.notes["workers"]


SPAWNED = """
import multiprocessing
import torch
import flatout

class Data(torch.utils.data.Dataset):
    def __init__(self, held=None):
        self.held = held
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.rand(1) + index

def run(held):
    loader = flatout.loader(Data(held), 2, workers=1)
    print(loader.notes["workers"], [round(float(batch.sum()), 4) for batch in loader])
"""


@pytest.mark.slow
def test_where_workers_are_spawned_a_missing_guard_and_a_lambda_are_told(tmp_path: Path) -> None:
    begin = 'multiprocessing.set_start_method("spawn")\n'
    (tmp_path / "plain.py").write_text(SPAWNED + begin + "run(None)\n")
    guarded = "if __name__ == '__main__':\n    " + begin + "    run(lambda: 1)\n    run(None)\n"
    (tmp_path / "guarded.py").write_text(SPAWNED + guarded)
    running = [
        subprocess.Popen(
            [sys.executable, tmp_path / name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in ("plain.py", "guarded.py")
    ]
    said = []
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
        said += out.decode().splitlines()
    unguarded, unpicklable, spawned = said
    assert unguarded.startswith("0: the script trains outside of")
    assert unpicklable.startswith("0: dataset cannot be pickled for spawned workers")
    assert spawned.startswith("1: requested")
    assert len({line[line.index("[") :] for line in said}) == 1
