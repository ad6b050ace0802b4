"""Sums and joins of tensors of every kind between real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import ranked

pytestmark = pytest.mark.slow
PROGRAM = """
import json, sys
import torch
from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup

rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
group = RankGroup(wire.RankOrders(rank, size, store, 0, timeout_s=60))
wrong = []

def all_of(count, dtype, shape):
    dice = torch.Generator().manual_seed(count)
    return [torch.randn(count, *shape, generator=dice).mul(50).to(dtype) for _ in range(size)]

for count in (2**20 + 7, 5):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        ranks = all_of(count, dtype, ())
        whole = ranks[0]
        for other in ranks[1:]:
            whole = whole + other
        own = group.sum_(ranks[rank].clone())
        bound = 4.0 if dtype.itemsize == 2 else 1e-3  # of values up to some hundreds
        close = torch.allclose(own.double(), whole.double(), rtol=0, atol=bound)
        fingerprint = group.equal(float(own.double().sum()), float(own[0]), float(own[-1]))
        if not (close and fingerprint):
            wrong.append(["sum", count, str(dtype)])
for dtype in (torch.float32, torch.bool, torch.int64, torch.complex64):
    for dim in (0, 1):
        counts = [300 + 7 * each for each in range(size)]
        ranks = [part[: counts[each]] for each, part in enumerate(all_of(400, dtype, (40, 3)))]
        whole = torch.cat(ranks)
        joined = group.joined(ranks[rank].transpose(0, dim), dim, counts)
        if not torch.equal(joined, whole.transpose(0, dim)) or not joined.is_contiguous():
            wrong.append(["join", dim, str(dtype)])
print(json.dumps({"wrong": wrong}))
group.agreed(True)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_joins(size: int, tmp_path: Path) -> None:
    assert ranked.exchanging(tmp_path, PROGRAM, size) == [{"wrong": []}] * size


SLOW_END = """
import atexit, json, sys, time, weakref
import torch
from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup

group = RankGroup(wire.RankOrders(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], 0, timeout_s=60))
atexit.register(group.close)
group.agreed(True)
last = torch.ones(4)
weakref.finalize(last, time.sleep, 1.0).atexit = False
if int(sys.argv[1]):
    time.sleep(0.2)  # rank 0 has let go of its own by then: a thread of gloo has the last of it
begin = group.beside("last")
begin(last)
del last
print(json.dumps("ended"), flush=True)
"""


def test_python_does_not_end_before_gloo_has_let_go_of_what_was_exchanged(tmp_path: Path) -> None:
    """Else the thread that frees the tensor aborts the process, now and then."""
    assert ranked.exchanging(tmp_path, SLOW_END, 2) == ["ended"] * 2
