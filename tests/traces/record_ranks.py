"""Record the traces of two gloo ranks that lie beside this file.

    torchrun --standalone --nproc-per-node 2 tests/traces/record_ranks.py KIND FOLDER

buckets: DistributedDataParallel with small buckets; one_bucket: one for all gradients; by_hand: an
all-reduce for each parameter; uneven: rank 1 has three times the rows of rank 0.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, DEPTH = 384, 8
BUCKET_MIB = {"buckets": 1, "uneven": 1, "one_bucket": 1000}
ROWS = {"uneven": (256, 768)}


def main(kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    if kind in BUCKET_MIB:
        model = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB[kind])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = ROWS.get(kind, (512, 512))[dist.get_rank()]
    path = f"{folder}/gloo_{kind}_rank{dist.get_rank()}.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=2, active=2),
        on_trace_ready=lambda done: done.export_chrome_trace(path),
        record_shapes=True,
    ) as recorder:
        for _ in range(6):
            step(kind, model, optimizer, torch.randn(rows, WIDTH))
            recorder.step()
    dist.destroy_process_group()


def step(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if kind == "by_hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
