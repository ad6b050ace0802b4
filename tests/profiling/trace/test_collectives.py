"""Communication between ranks, from real traces of gloo and NCCL and from small ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace.analysing import analyse, ranks
from flatout.profiling.trace.reading import read
from profiling.trace.making import Trace, real

PARAMETERS = 8 * (384 * 384 + 384) + 384 + 1
"""Of the model that record_ranks.py trains."""


@pytest.mark.parametrize(
    ("name", "calls"),
    [("gloo_buckets_rank0", 4), ("gloo_one_bucket_rank0", 1), ("gloo_by_hand_rank0", 18)],
)
def test_real_gloo_ranks(name: str, calls: int) -> None:
    """The call that asks for a collective, and gloo's own record of it, are one message."""
    profile = analyse(read([real(name)])[0])
    (found,) = profile.collectives
    assert (found.name, found.calls, found.ranks) == ("all_reduce", calls, 2)
    assert found.bytes == 4 * PARAMETERS
    assert found.exposed_ms == pytest.approx(profile.anatomy.part(Kind.COMMUNICATION), rel=0.01)
    assert found.ms >= found.exposed_ms


def test_bus_bandwidth_is_that_of_large_messages() -> None:
    (whole,) = analyse(read([real("gloo_one_bucket_rank0")])[0]).collectives
    assert whole.bus_gb_per_s is not None
    assert 0.01 < whole.bus_gb_per_s < 20
    (parts,) = analyse(read([real("gloo_by_hand_rank0")])[0]).collectives
    assert parts.bus_gb_per_s is None, "none of a MiB"


def test_a_rank_that_waits_for_a_slower_one() -> None:
    recordings = read([real(f"gloo_uneven_rank{rank}") for rank in (0, 1)])
    fast, slow = ranks(recordings)
    assert slow.compute_ms > 1.5 * fast.compute_ms
    assert fast.communication_ms > 5 * slow.communication_ms


def test_nccl() -> None:
    collectives = {one.name: one for one in analyse(read([real("a100_nccl")])[0]).collectives}
    reduced = collectives["all_reduce"]
    assert reduced.ranks == 2
    assert reduced.bus_gb_per_s == pytest.approx(13.0, abs=0.1)
    assert collectives["broadcast"].bus_gb_per_s is None


def test_messages_at_one_time_count_their_time_once(tmp_path: Path) -> None:
    trace = Trace(facts={"distributedInfo": {"world_size": 4}}).steps(0, 1000)
    trace.op("aten::mm", 0, 400)
    for thread, begin, end in ((7, 300, 700), (8, 500, 900)):
        trace.mark("gloo:all_reduce", begin, end, tid=thread)
    (found,) = analyse(trace.recording(tmp_path)).collectives
    assert (found.calls, found.ranks, found.bytes) == (2, 4, None)
    assert found.ms == pytest.approx(0.6)
    assert found.exposed_ms == pytest.approx(0.5)


def test_group_sizes_are_those_of_each_message(tmp_path: Path) -> None:
    trace = Trace(facts={"distributedInfo": {"world_size": 16}}).steps(0, 1000)
    sizes = {"In msg nelems": 2**20, "dtype": "Float", "Group size": 8}
    trace.op("record_param_comms", 100, 110, **sizes)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32", 200, 300, 104, stream=9)
    (found,) = analyse(trace.recording(tmp_path)).collectives
    assert (found.ranks, found.bytes) == (8, 2**22)
    assert found.bus_gb_per_s == pytest.approx(1.75 * 2**22 / 100e-6 / 1e9)
