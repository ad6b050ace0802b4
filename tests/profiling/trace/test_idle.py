"""Causes of idle time, one by one."""

from __future__ import annotations

import pytest

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace.analysing import analyse
from profiling.trace.making import Trace

RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def busy_then(trace: Trace, *, until: float = 100, again: float, launch: float) -> Trace:
    """The device works from 10 us on, and again later."""
    trace.op("aten::relu", 0, 5).kernel(RELU, 10, until, 2)
    return trace.op("aten::gelu", launch - 2, launch + 4).kernel(RELU, again, 1000, launch)


def gaps(trace: Trace, tmp_path):
    """All idle time after the device's first work, in us, by cause and what the host did."""
    found = analyse(trace.recording(tmp_path))
    assert sum(gap.ms for gap in found.gaps) == pytest.approx(
        found.anatomy.part(*Kind) - found.anatomy.busy_ms
    )
    return {
        (gap.kind, gap.doing): round(gap.ms * 1e3, 3)
        for gap in found.gaps
        if gap.doing != "aten::relu"
    }, found


GELU, BARRIER = "aten::gelu", "c10d::barrier"
CAUSES = {
    "the host launches too slowly": (
        {"again": 400, "launch": 395}, None, {(Kind.WAIT_HOST, GELU): 300},
    ),
    "a loader is waited for": (
        {"again": 400, "launch": 390}, lambda trace: trace.mark(LOADER, 60, 350),
        {(Kind.WAIT_DATA, LOADER): 250, (Kind.WAIT_HOST, GELU): 50},
    ),
    "a loader in front of a busy device costs nothing": (
        {"until": 400, "again": 400, "launch": 390}, lambda trace: trace.mark(LOADER, 60, 350), {},
    ),
    "a synchronising call while the device is idle is not to blame": (
        {"again": 400, "launch": 390}, lambda trace: trace.call("cudaStreamSynchronize", 150, 152),
        {(Kind.WAIT_HOST, GELU): 300},
    ),
    "other ranks are waited for": (
        {"again": 400, "launch": 390}, lambda trace: trace.op(BARRIER, 90, 350),
        {(Kind.WAIT_RANKS, BARRIER): 250, (Kind.WAIT_HOST, GELU): 50},
    ),
    "a kernel that was in the queue is not the host's": (
        {"again": 103, "launch": 20}, None, {(Kind.WAIT_QUEUED, GELU): 3},
    ),
    "a long gap before queued work has no known cause": (
        {"again": 400, "launch": 20}, None, {(Kind.WAIT_OTHER, GELU): 300},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CAUSES)
def test_the_cause_of_a_gap(case, tmp_path):
    times, add, expected = CAUSES[case]
    trace = busy_then(Trace().steps(0, 1000), **times)
    if add is not None:
        add(trace)
    assert gaps(trace, tmp_path)[0] == expected


@pytest.mark.parametrize(
    "call", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "hipDeviceSynchronize"]
)
def test_the_device_ran_dry_after_a_synchronising_call(call, tmp_path):
    trace = busy_then(Trace().steps(0, 1000), again=400, launch=390)
    trace.op("aten::item", 48, 106).op("aten::_local_scalar_dense", 49, 105).call(call, 50, 104)
    found, profile = gaps(trace, tmp_path)
    assert found == {(Kind.WAIT_SYNC, "aten::item"): 300}
    (sync,) = profile.syncs
    assert (sync.name, sync.calls) == ("aten::item", 1)
    assert (sync.ms, sync.idle_ms) == pytest.approx((0.054, 0.3))


def test_a_copy_from_the_device_to_pageable_memory_synchronises(tmp_path):
    trace = busy_then(Trace().steps(0, 1000), again=400, launch=390)
    trace.op("aten::to", 48, 106).op("aten::copy_", 49, 105).call("cudaMemcpyAsync", 50, 104)
    trace.work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 100, 102, bytes=4)
    found, profile = gaps(trace, tmp_path)
    assert found == {(Kind.WAIT_SYNC, "aten::to"): 298}
    (copy,) = profile.copies
    assert (copy.direction, copy.pinned, copy.bytes) == ("DtoH", False, 4)
    assert copy.exposed_ms == pytest.approx(0.002)


def test_a_copy_from_pinned_memory_does_not(tmp_path):
    trace = busy_then(Trace().steps(0, 1000), again=400, launch=390)
    trace.call("cudaMemcpyAsync", 50, 54)
    trace.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 102, bytes=4)
    found, profile = gaps(trace, tmp_path)
    assert found == {(Kind.WAIT_HOST, "aten::gelu"): 298} and not profile.syncs


def test_queued_work_is_not_the_hosts_even_while_it_waits_for_the_device(tmp_path):
    trace = busy_then(Trace().steps(0, 1000), again=103, launch=20)
    found, profile = gaps(trace.call("cudaStreamSynchronize", 50, 990), tmp_path)
    assert found == {(Kind.WAIT_QUEUED, "aten::gelu"): 3}
    assert profile.syncs[0].idle_ms == 0


def test_a_trace_of_the_device_alone_blames_nobody(tmp_path):
    trace = Trace()
    trace.work("kernel", RELU, 0, 10).work("kernel", RELU, 30, 40)
    found = analyse(trace.recording(tmp_path)).anatomy
    assert found.part(Kind.WAIT_OTHER) == pytest.approx(0.02)


def graph(trace: Trace, launch: float, *nodes: tuple[float, float]) -> Trace:
    """One launch of a CUDA graph, and those of its nodes that were recorded."""
    trace.op("CompiledFunction", launch - 2, launch + 8).call("cudaGraphLaunch", launch, launch + 5)
    for begin, end in nodes:
        trace.work("kernel", RELU, begin, end)
    return trace


def test_gaps_within_a_graph_are_work_that_was_not_recorded(tmp_path):
    trace = Trace().steps(0, 1000).op("aten::relu", 0, 5).kernel(RELU, 10, 100, 2)
    graph(trace, 20, (101, 200), (500, 700), (705, 900)).mark(LOADER, 250, 450)
    found, profile = gaps(trace, tmp_path)
    # The device starts each node by itself: 1 us before the first, 5 us before the last.
    assert found[Kind.WAIT_QUEUED, "CompiledFunction"] == 1 + 5
    assert found[Kind.UNRECORDED, "CompiledFunction"] == 300
    assert profile.anatomy.part(Kind.WAIT_DATA, Kind.WAIT_OTHER) == 0


def test_a_graph_that_starts_late_although_launched_was_not_recorded(tmp_path):
    trace = Trace().steps(0, 1000).op("aten::relu", 0, 5).kernel(RELU, 10, 100, 2)
    found, _ = gaps(graph(trace, 20, (600, 1000)), tmp_path)
    assert found == {(Kind.UNRECORDED, "CompiledFunction"): 500}


def test_a_graph_that_the_host_launches_late_is_waited_for(tmp_path):
    trace = Trace().steps(0, 1000).op("aten::relu", 0, 5).kernel(RELU, 10, 100, 2)
    found, _ = gaps(graph(trace, 590, (600, 1000)), tmp_path)
    assert found == {(Kind.WAIT_HOST, "CompiledFunction"): 500}


@pytest.mark.parametrize(("distance", "kind"), [(2, Kind.WAIT_HOST), (40, Kind.UNRECORDED)])
def test_gaps_of_a_sampled_trace_say_nothing_of_the_host(distance, kind, tmp_path):
    trace = Trace().steps(0, 20_000)
    for number in range(150):
        trace.op("aten::relu", 100 * number, 100 * number + 5)
        trace.kernel(RELU, 100 * number + 10, 100 * number + 20, 100 * number + 1)
        trace.correlation += distance - 1
    found = analyse(trace.recording(tmp_path)).anatomy
    assert found.part(kind) > 10 and found.part(Kind.WAIT_OTHER) == 0


def test_launches_whose_kernels_were_lost_say_nothing_of_the_host(tmp_path):
    trace = Trace().steps(0, 20_000)
    for number in range(150):
        trace.op("aten::relu", 100 * number, 100 * number + 5)
        trace.kernel(RELU, 100 * number + 10, 100 * number + 20, 100 * number + 1)
        if number % 4 == 0:
            trace.call("cudaLaunchKernel", 100 * number + 30, 100 * number + 32)
    found = analyse(trace.recording(tmp_path)).anatomy
    assert found.part(Kind.UNRECORDED) > 10 and found.part(Kind.WAIT_HOST) == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Activity Buffer Request", Kind.WAIT_OTHER), ("Lazy Function Loading", Kind.WAIT_HOST)],
)
def test_work_of_the_recorder_and_the_driver_is_named(name, kind, tmp_path):
    trace = busy_then(Trace().steps(0, 1000), again=400, launch=390)
    found, _ = gaps(trace.add("overhead", name, 150, 350, -1), tmp_path)
    assert found[kind, name] == 200
    assert found[Kind.WAIT_HOST, "aten::gelu"] == 100
