"""Large messages between real processes, through shared memory and without it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import ranked
from flatout_agent.ranks import shared_memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(shared_memory.FOLDER).is_dir(), reason="no /dev/shm here"),
]
PROGRAM = """
import json, sys
import torch
from flatout_agent import wire
from flatout_agent.ranks import shared_memory
from flatout_agent.ranks.group import RankGroup

rank, size, store, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
shared_memory.FOLDER = folder if rank == size - 1 else shared_memory.FOLDER
group = RankGroup(wire.RankOrders(rank, size, store, 0, timeout_s=60))
wrong = []

def all_of(count, dtype, shape):
    dice = torch.Generator().manual_seed(count)
    return [torch.randn(count, *shape, generator=dice).mul(50).to(dtype) for _ in range(size)]

lengths = (2**22 + 7, 2**21, 5, 2**16)
for round, count in enumerate(lengths):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        ranks = all_of(count, dtype, ())
        whole = ranks[0]
        for other in ranks[1:]:
            whole = whole + other
        own = group.sum_(ranks[rank].clone())
        bound = 2e-2 if dtype.itemsize == 2 else 1e-5
        close = torch.allclose(own.double(), whole.double(), rtol=bound, atol=bound)
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
# More than a buffer holds, and one rank has nothing left in the last piece.
counts = [2**21 + 11 - (2**20 + 5) * (each % 2) for each in range(size)]
ranks = [torch.arange(count) + rank for rank, count in enumerate(counts)]
if not torch.equal(group.joined(ranks[rank], 0, counts), torch.cat(ranks)):
    wrong.append(["join in pieces"])
print(json.dumps({"wrong": wrong, "memory": group._memory is not None}))
group.agreed(True)
"""


def run(tmp_path: Path, size: int, folder: str = shared_memory.FOLDER) -> list[dict[str, object]]:
    return ranked.exchanging(tmp_path, PROGRAM, size, folder)


@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_joins(size: int, tmp_path: Path) -> None:
    assert run(tmp_path, size) == [{"wrong": [], "memory": True}] * size
    name = hashlib.sha256(str(tmp_path / "store").encode()).hexdigest()[:16]
    assert list(Path(shared_memory.FOLDER).glob(f"{shared_memory.PREFIX}{name}*")) == []


def test_where_one_rank_has_no_such_memory_all_go_without(tmp_path: Path) -> None:
    answers = run(tmp_path, 2, str(tmp_path / "absent"))
    assert answers == [{"wrong": [], "memory": False}] * 2
