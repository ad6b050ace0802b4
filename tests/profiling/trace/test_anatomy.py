"""Each instant of the window has one owner: the parts add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.nouns.anatomy import WAITS, Kind
from flatout.profiling.trace.anatomy import anatomy, factors
from flatout.profiling.trace.attribution import look
from flatout.profiling.trace.device import ORDER, RANKS
from flatout.profiling.trace.reading import read
from profiling.trace.making import BACKWARD, REAL, Trace, real

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TO_DEVICE = "Memcpy HtoD (Pinned -> Device)"


def parts(found) -> dict[Kind, float]:
    return {part.kind: round(part.ms, 6) for part in found.parts}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_parts_add_up_to_the_step(name):
    (recording,) = read([real(name)])
    found = anatomy(look(recording))
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms, rel=1e-9)
    assert found.device == "cuda" and found.part(*WAITS) > 0


def test_two_steps_on_an_accelerator(tmp_path):
    trace = Trace().steps(0, 1000, 2000)
    for at in (0, 1000):
        trace.op("aten::mm", at + 10, at + 20).kernel(GEMM, at + 20, at + 220, at + 12)
        trace.kernel(RELU, at + 200, at + 300, at + 30, stream=8)  # 20 us beside the product
        trace.kernel(NCCL, at + 250, at + 400, at + 40, stream=9)  # 50 us hidden
        trace.call("cudaMemcpyAsync", at + 44, at + 48)
        trace.work("gpu_memcpy", TO_DEVICE, at + 290, at + 350, 10, bytes=600)  # 50 us alone
    found = anatomy(look(trace.recording(tmp_path)))
    assert (found.step_ms, found.steps) == (1.0, 2)
    expected = {
        Kind.TENSOR_CORES: 0.2,
        Kind.ELEMENTWISE: 0.08,
        Kind.COPY: 0.05,
        Kind.COMMUNICATION: 0.05,
        Kind.WAIT_HOST: 0.62,
    }
    assert parts(found) == expected
    assert found.hidden_communication_ms == pytest.approx(0.1)
    assert found.overlapped_copy_ms == pytest.approx(0.01)
    assert {part.kind: part.launches for part in found.parts if part.launches} == dict.fromkeys(
        [Kind.TENSOR_CORES, Kind.ELEMENTWISE, Kind.COPY, Kind.COMMUNICATION], 1
    )


@pytest.mark.parametrize("launch_recorded", [True, False])
def test_work_from_before_is_not_the_steps(launch_recorded, tmp_path):
    """Two steps of 1 ms on the device, launched within 0.2 ms by a host that runs ahead. A
    profiler's warm-up drops the launches before them, whose kernels still run.
    """
    trace = Trace().steps(0, 100, 200)
    trace.work("kernel", GEMM, -500 if launch_recorded else 0, 300, correlation=900)
    if launch_recorded:
        trace.events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100,
             "ts": -600, "dur": 2, "args": {"correlation": 900}}
        )  # fmt: skip
    trace.kernel(GEMM, 300, 1300, 10).kernel(GEMM, 1300, 2300, 110)
    found = anatomy(look(trace.recording(tmp_path)))
    assert found.step_ms == pytest.approx(1.0)
    assert parts(found) == {Kind.TENSOR_CORES: 1.0}


def test_what_runs_in_the_optimizers_step_is_the_optimizers(tmp_path):
    trace = Trace().steps(0, 1000).mark("Optimizer.step#AdamW.step", 100, 200)
    trace.op("aten::_foreach_add_", 110, 150).kernel(RELU, 150, 250, 120)
    trace.op("aten::relu", 300, 320).kernel(RELU, 350, 400, 310)
    found = anatomy(look(trace.recording(tmp_path)))
    assert (found.part(Kind.OPTIMIZER), found.part(Kind.ELEMENTWISE)) == (0.1, 0.05)


def test_without_marks_the_whole_is_one_step(tmp_path):
    trace = Trace().op("aten::mm", 0, 20).kernel(GEMM, 50, 90, 10)
    seen = look(trace.recording(tmp_path))
    assert not seen.window.marks
    assert parts(anatomy(seen)) == {Kind.WAIT_HOST: 0.04, Kind.TENSOR_CORES: 0.04}


def test_steps_that_were_cut_off_are_left_out(tmp_path):
    trace = Trace().steps(0, 100, 200, 300)
    for at in (0, 100):
        for shift in (10, 20, 30, 40):
            trace.op("aten::relu", at + shift, at + shift + 5)
    trace.op("aten::relu", 210, 215)
    assert anatomy(look(trace.recording(tmp_path))).steps == 2


def test_on_a_cpu(tmp_path):
    trace = Trace().steps(0, 1000, 2000)
    for at in (0, 1000):
        trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 100)
        trace.op("aten::stack", at + 20, at + 40)
        trace.op("aten::linear", at + 200, at + 310).op("aten::addmm", at + 210, at + 300)
        trace.op("aten::relu", at + 320, at + 350)
        trace.op("aten::copy_", at + 360, at + 400)
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + 340, at + 420, BACKWARD)
        trace.op("aten::mm", at + 342, at + 418, BACKWARD)  # 8 us beside relu, 40 beside copy_
        trace.mark("Optimizer.step#SGD.step", at + 500, at + 600)
        trace.op("aten::add_", at + 510, at + 550)
    found = anatomy(look(trace.recording(tmp_path)))
    assert found.device == "cpu" and found.step_ms == 1.0
    assert parts(found) == {
        Kind.WAIT_DATA: 0.1,
        Kind.MATMUL: 0.166,
        Kind.ELEMENTWISE: 0.022,
        Kind.OPTIMIZER: 0.1,
        Kind.PYTHON: 0.612,
    }


def test_what_recording_added_is_taken_off_the_host(tmp_path):
    trace = Trace().steps(0, 1000).op("aten::mm", 10, 20).kernel(GEMM, 200, 600, 12)
    seen = look(trace.recording(tmp_path))
    found = anatomy(seen, step_ms=0.7)
    assert found.recording_ms == pytest.approx(0.3)
    assert parts(found) == {Kind.TENSOR_CORES: 0.4, Kind.WAIT_HOST: 0.3}
    assert factors(seen, found)[Kind.WAIT_HOST] == pytest.approx(0.5)


@pytest.mark.parametrize("step_ms", [0.1, 0.39, 1.0, 1.7])
def test_parts_add_up_to_any_undisturbed_step(step_ms, tmp_path):
    trace = Trace().steps(0, 1000).op("aten::mm", 10, 20).kernel(GEMM, 200, 600, 12)
    found = anatomy(look(trace.recording(tmp_path)), step_ms=step_ms)
    assert found.step_ms == step_ms
    assert sum(part.ms for part in found.parts) == pytest.approx(step_ms)


def on_a_cpu(folder):
    """Of 1 ms: 0.3 in the loader, 0.1 in one product, 0.4 in four additions, 0.2 in Python."""
    trace = Trace().steps(0, 1000)
    trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    trace.op("aten::mm", 400, 500)
    for at in (500, 600, 700, 800):
        trace.op("aten::add", at, at + 100)
    return look(trace.recording(folder))


@pytest.mark.parametrize(
    ("step_ms", "python", "matmul", "elementwise", "added"),
    [
        (1.0, 0.2, 0.1, 0.4, 0.0),
        (0.9, 0.1, 0.1, 0.4, 0.1),
        (0.7, 0.0, 0.08, 0.32, 0.3),  # 0.1 by five launches
        (0.31, 0.0, 0.002, 0.008, 0.45),  # 0.25 by launches: half of what the shortest take
        (1.7, 0.4, 0.2, 0.8, 0.0),
    ],
)
def test_what_recording_added_is_never_the_loaders(
    step_ms, python, matmul, elementwise, added, tmp_path
):
    found = anatomy(on_a_cpu(tmp_path), step_ms=step_ms)
    expected = [0.3, python, matmul, elementwise, added]
    kinds = (Kind.WAIT_DATA, Kind.PYTHON, Kind.MATMUL, Kind.ELEMENTWISE)
    assert [*map(found.part, kinds), found.recording_ms] == pytest.approx(expected)
    assert sum(part.ms for part in found.parts) == pytest.approx(step_ms)


def test_what_cannot_have_been_recordings_is_scaled(tmp_path):
    """Many short products: the recorder cannot have cost all of their time."""
    trace = Trace().steps(0, 1000)
    trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    for at in range(300, 390, 10):
        trace.op("aten::mm", at, at + 10)
    trace.op("aten::add", 390, 1000)
    found = anatomy(look(trace.recording(tmp_path)), step_ms=0.6)
    # 0.4 too long: ten operators give half of the shortest, 0.005 each; the rest is scaled.
    assert found.recording_ms == pytest.approx(0.05)
    assert parts(found) == {
        Kind.WAIT_DATA: 0.3,
        Kind.MATMUL: pytest.approx(0.045 / 0.65 * 0.3, rel=1e-4),
        Kind.ELEMENTWISE: pytest.approx(0.605 / 0.65 * 0.3, rel=1e-4),
    }


def test_a_step_that_is_shorter_than_its_wait_for_data(tmp_path):
    found = anatomy(on_a_cpu(tmp_path), step_ms=0.2)
    assert sum(part.ms for part in found.parts) == pytest.approx(0.2)
    assert found.part(Kind.WAIT_DATA) > 0


def test_operations_are_those_of_the_shapes(tmp_path):
    trace = Trace().steps(0, 1000)
    trace.op("aten::mm", 10, 20, **{"Input Dims": [[8, 4], [4, 2]]}).kernel(GEMM, 50, 90, 12)
    found = anatomy(look(trace.recording(tmp_path)))
    assert found.flops == 2 * 8 * 4 * 2
    assert [part.flops for part in found.parts if part.kind is Kind.TENSOR_CORES] == [128]


KERNELS = {GEMM: "kernel", RELU: "kernel", NCCL: "kernel", TO_DEVICE: "gpu_memcpy"}
WORK = st.tuples(
    st.integers(0, 300), st.integers(1, 80), st.sampled_from(sorted(KERNELS)), st.integers(0, 3)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(works=st.lists(WORK, min_size=1, max_size=12))
def test_against_a_count_of_every_microsecond(works, tmp_path):
    trace = Trace().steps(0, 400)
    for begin, length, name, stream in works:
        trace.call("cudaLaunchKernel", min(begin, 390), min(begin, 390) + 1)
        trace.work(KERNELS[name], name, begin, begin + length, stream)
    seen = look(trace.recording(tmp_path))
    low, high = 0, max([400, *(begin + length for begin, length, _, _ in works)])
    assert (seen.window.begin, seen.window.end) == (low * 1000, high * 1000)
    counted = dict.fromkeys((*ORDER, None), 0)
    for at in range(low, high):
        active = [
            RANKS[kind]
            for begin, length, name, _ in works
            if begin <= at < begin + length
            for kind in [{GEMM: Kind.TENSOR_CORES, RELU: Kind.ELEMENTWISE,
                          NCCL: Kind.COMMUNICATION, TO_DEVICE: Kind.COPY}[name]]
        ]  # fmt: skip
        counted[ORDER[min(active)] if active else None] += 1
    found = anatomy(seen)
    for kind in ORDER:
        assert found.part(kind) == pytest.approx(counted[kind] / 1000)
    assert found.part(*WAITS) == pytest.approx(counted[None] / 1000)
    assert np.isclose(sum(part.ms for part in found.parts), found.step_ms)
