"""Whole profiles: of the recorded traces, and of the examples on a CPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from flatout.nouns.anatomy import WAITS, Kind
from flatout.profiling.trace.analysing import analyse, ranks
from flatout.profiling.trace.drawing import MOST_SPANS
from flatout.profiling.trace.reading import read
from profiling.trace.making import REAL, Trace, real

DEVICES = {
    "v100_train": ("Tesla V100-SXM2-32GB", (7, 0)),
    "mi250_toy": ("AMD Radeon Graphics", (9, 0)),
    "sampled_rank0": (None, None),
}
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module", params=REAL)
def profile(request):
    (recording,) = read([real(request.param)])
    return request.param, analyse(recording)


@pytest.mark.slow
def test_a_recorded_trace(profile):
    # tables tell the same as the anatomy
    name, found = profile
    anatomy = found.anatomy
    for kind in WAITS:
        told = sum(gap.ms for gap in found.gaps if gap.kind is kind)
        assert told == pytest.approx(anatomy.part(kind))
    exposed = sum(one.exposed_ms for one in found.collectives)
    assert exposed == pytest.approx(anatomy.part(Kind.COMMUNICATION), rel=0.02, abs=1e-6)
    copied = sum(copy.exposed_ms for copy in found.copies)
    assert copied == pytest.approx(anatomy.part(Kind.COPY), rel=0.02, abs=1e-6)
    assert all(0 <= copy.exposed_ms <= copy.ms + 1e-9 for copy in found.copies)
    assert {kernel.kind for kernel in found.kernels} <= set(Kind)
    assert sum(kernel.ms for kernel in found.kernels) > 0
    # the device
    if name in DEVICES:
        assert (found.device_name, found.capability) == DEVICES[name]
    # what a person would say of them
    if name == "v100_train":
        assert anatomy.parts[0].kind is Kind.MATMUL and anatomy.part(Kind.TENSOR_CORES) == 0
        assert anatomy.share(*WAITS) < 0.03 and anatomy.steps == 5
        assert {dtype for one in found.operators if "conv" in one.name for dtype in one.dtypes}
    if name == "a100_train":
        assert {one.name for one in found.collectives} == {"all_to_all", "all_reduce"}
        assert {sync.name for sync in found.syncs} == {"aten::to", "aten::item"}
    if name == "a100_nccl":
        sent = {one.name: one.bytes for one in found.collectives}
        assert sent["all_reduce"] == pytest.approx(102.23e6, rel=0.01), "ResNet-50's gradients"
    if name == "mi250_toy":
        assert anatomy.share(Kind.WAIT_HOST) > 0.9 and anatomy.steps == 1
        assert [copy.bytes for copy in found.copies] == [2560 * 2]
    # few kernels are unknown
    assert found.anatomy.part(Kind.OTHER) < 0.01 * found.anatomy.busy_ms
    # most kernels are traced to their operator
    known = sum(kernel.ms for kernel in found.kernels if kernel.operator)
    assert known >= 0.95 * sum(kernel.ms for kernel in found.kernels)
    # the timeline is of one step
    assert 0 < len(found.timeline) <= MOST_SPANS
    streams = {span.lane: span.stream for span in found.timeline}
    assert streams.pop("host") is streams.pop("idle") is None
    assert streams and streams == {f"stream {number}": number for number in streams.values()}
    for span in found.timeline:
        assert span.begin_ms >= -1e-6 and span.begin_ms + span.ms <= found.anatomy.step_ms + 1e-3
    assert [span.begin_ms for span in found.timeline] == sorted(
        span.begin_ms for span in found.timeline
    )
    # it can be written as json
    json.dumps(asdict(found), allow_nan=False)
    for value in asdict(found)["operators"][0].values():
        assert type(value).__module__ in ("builtins", "flatout.nouns.anatomy")


LINES = {
    ("text", "aten::_scaled_dot_product_flash_attention_for_cpu"): "F.scaled_dot_product_attention",
    ("text", "aten::gelu_backward"): "self.mlp(self.norm2(x))",
    ("text", "Optimizer.step#AdamW.step"): "optimizer.step()",
    ("text", "aten::linalg_vector_norm"): "clip_grad_norm_",
    ("text", "aten::randint"): "torch.randint",
    ("text", "aten::_log_softmax"): "F.cross_entropy",
    ("images", "aten::native_batch_norm"): "self.",
    ("images", "aten::mkldnn_convolution"): "self.",
    ("images", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"): "for ",
    ("images", "Optimizer.zero_grad#AdamW.zero_grad"): "optimizer.zero_grad()",
}


@pytest.fixture(scope="module", params=["text", "images"])
def on_cpu(request):
    name = request.param
    times, detail = (read([real(f"{name}_cpu{part}")])[0] for part in ("", "_detail"))
    return name, analyse(times, detail, roots=[EXAMPLES / name])


def test_a_trace_of_a_cpu(on_cpu):
    # parts add up on a cpu
    name, found = on_cpu
    anatomy = found.anatomy
    assert anatomy.device == "cpu" and found.trace_steps
    assert sum(part.ms for part in anatomy.parts) == pytest.approx(anatomy.step_ms)
    assert anatomy.parts[0].kind is Kind.MATMUL
    assert anatomy.flops and anatomy.flops > 1e9
    assert anatomy.part(Kind.OTHER) < 0.01 * anatomy.step_ms
    # operators tell the same as the anatomy
    for kind in (Kind.MATMUL, Kind.NORMALISATION, Kind.OPTIMIZER, Kind.WAIT_DATA):
        told = sum(one.host_ms for one in found.operators if one.kind is kind)
        # The last step ends in the optimizer's hook, so within its annotation.
        share = 0.05 if kind is Kind.OPTIMIZER else 1e-6
        assert told == pytest.approx(found.anatomy.part(kind), rel=share, abs=1e-6)
    # nearly all time of operators has a line
    computing = [one for one in found.operators if one.kind is not Kind.PYTHON]
    placed = [one for one in computing if one.where]
    assert sum(one.host_ms for one in placed) > 0.97 * sum(one.host_ms for one in computing)
    for one in placed:
        text = (EXAMPLES / name / one.where.file).read_text().splitlines()[one.where.line - 1]
        assert text.strip() == one.where.source
    # shapes and backward come from the detail
    for operator, line in ((op, line) for (of, op), line in LINES.items() if of == name):
        where = {
            str(one.where): one.where.source for one in found.operators if one.name == operator
        }
        assert where and all(line in source for source in where.values()), where
    product = next(one for one in found.operators if one.kind is Kind.MATMUL)
    assert product.shapes and product.dtypes == ("float",) and product.flops
    assert any(one.backward and one.where for one in found.operators)
    assert found.memory and max(point.bytes for point in found.memory) > 1e5
    # products with all their inputs
    products = found.products
    total_ms = sum(one.host_ms for one in found.operators if one.kind is Kind.MATMUL)
    assert 0.9 * total_ms < sum(product.ms for product in products) <= 1.001 * total_ms
    costly = products[0]
    assert costly.ms == max(product.ms for product in products)
    assert len(costly.shapes) == len(costly.dtypes) == len(costly.values)
    assert {product.backward for product in products} == {True, False}
    names = {product.name for product in products}
    assert ("aten::mkldnn_convolution" if name == "images" else "aten::addmm") in names


def test_without_roots_lines_are_those_of_functions(on_cpu):
    (detail,) = read([real(f"{on_cpu[0]}_cpu_detail")])
    found = analyse(detail)
    functions = {one.where.function for one in found.operators if one.where}
    assert "forward" in functions and not any(
        one.where.file.startswith("torch") for one in found.operators if one.where
    )


def test_ranks_in_short(tmp_path):
    for rank, length in ((0, 300), (1, 500)):
        trace = Trace(facts={"distributedInfo": {"rank": rank}}).steps(0, 1000)
        trace.kernel("volta_sgemm_64x64_nt", 100, 100 + length, 50)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32", 300, 700, 60, stream=9)
        trace.recording(tmp_path, f"{rank}.json")
    recordings = read([tmp_path])
    first, second = ranks(recordings)
    assert (first.rank, second.rank) == (0, 1)
    assert (first.compute_ms, second.compute_ms) == pytest.approx((0.3, 0.5))
    assert first.communication_ms == second.communication_ms == pytest.approx(0.4)
    assert (first.busy_ms, first.step_ms) == pytest.approx((0.6, 1.0))
    assert ranks(recordings[:1]) == ()
