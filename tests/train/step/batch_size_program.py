"""Two ranks with different memories look for a batch size; each prints what it found.

torch is imported once, before the ranks are forked.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

import flatout
from flatout_train.step import batch_size as file

sys.path.insert(0, str(Path(__file__).parents[2]))
from train.step.limited_memory import Held, Memory


def rank_main(rank: int, store: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    file.PATIENCE, file.RUN_S = 10**6, 1e-4
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    memory = Memory(8 * (13 if rank else 40))
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Held(memory), nn.Linear(8, 3))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    step = flatout.train_step(wrapped, F.cross_entropy, optimizer, compile=False)

    def make(rows: int) -> Any:
        return torch.randn(rows, 8), torch.randint(3, (rows,))

    step(make(4))
    found = flatout.find_batch_size(step, make, start=2)
    step(make(4))  # they still communicate
    weights = [torch.zeros_like(model[0].weight) for _ in range(2)]
    dist.all_gather(weights, model[0].weight.detach())
    assert torch.equal(*weights)
    dist.barrier()
    sizes = ", ".join(f"{size}: {rate:.1f}" for size, rate in found.samples_per_s.items())
    for turn in range(2):
        if turn == rank:
            sys.stdout.write(f"largest {found.largest} fastest {found.fastest} {sizes}\n")
            sys.stdout.flush()
        dist.barrier()
    os._exit(0)  # gloo's threads abort the process now and then while it is taken down


if __name__ == "__main__":
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"flatout-ranks-{os.getpid()}"
    gc.freeze()  # what was imported costs each collection of garbage nothing
    try:
        mp.start_processes(rank_main, (str(path),), nprocs=2, start_method="fork")
    finally:
        path.unlink(missing_ok=True)
