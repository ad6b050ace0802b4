"""One rank of an exchange between processes of this machine: times the sum over all of them.

This file is started once for each rank by `kernels/ranks.py`, with its orders as one JSON argument;
rank 0 answers. The ranks meet in a file, so that no port can be taken; each ends by itself when its
time is over, even if another never came.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""Otherwise gloo looks up the address of this host's name, which not every machine knows."""
BATCH_S = 0.02
MOST_CALLS = 200
FEWEST = 5
LATE = 3
"""Exit code if the time is over."""


def main(arguments: list[str], tell: Tell) -> None:
    """Orders: rank, ranks, backend, store (a file), size (bytes), budget_s, limit_s, threads."""
    orders = json.loads(arguments[0])
    alarm = threading.Timer(orders["limit_s"], os._exit, [LATE])
    alarm.daemon = True
    alarm.start()
    if sys.platform in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    rank, ranks = orders["rank"], orders["ranks"]
    torch.set_num_threads(orders["threads"])
    device = f"cuda:{rank}" if orders["backend"] == "nccl" else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    store = dist.FileStore(orders["store"], ranks)
    dist.init_process_group(
        orders["backend"],
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=orders["limit_s"]),
    )
    seconds = measured(torch, device, orders["size"], orders["budget_s"])
    if rank == 0:
        tell({"seconds": seconds})
        store.set("told", "1")
    store.wait(["told"])  # one that ends early would break the others' connections


def measured(torch: Any, device: str, size: int, budget_s: float) -> float:
    """Seconds of one all-reduce of `size` bytes: the slowest rank of each batch, their median.

    All ranks see the same times, and so agree on the number of calls.
    """
    values = torch.ones(max(1, size // 4), device=device)
    times: list[float] = []
    calls, spent_s = 1, 0.0
    for _ in range(2):  # the first connects
        one_s = _batch_s(torch, device, values, calls) / calls
        calls = max(1, min(MOST_CALLS, round(BATCH_S / max(one_s, 1e-7))))
    while len(times) < FEWEST or spent_s < budget_s:
        batch_s = _batch_s(torch, device, values, calls)
        times.append(batch_s / calls)
        spent_s += batch_s
    return statistics.median(times)


def _batch_s(torch: Any, device: str, values: Any, calls: int) -> float:
    """Seconds by the clock of the slowest rank, from the moment when all have arrived."""
    dist = torch.distributed
    values.fill_(1.0)
    longest = torch.zeros(1, device=device)
    dist.all_reduce(longest)
    _wait(torch, device)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(values)
    _wait(torch, device)
    longest.fill_(time.perf_counter() - began)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest.item())


def _wait(torch: Any, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    from tell import begin, end  # type: ignore[import-not-found]  # a file of this folder

    main(sys.argv[1:], begin())
    end()
