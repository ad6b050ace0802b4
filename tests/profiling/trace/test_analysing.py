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

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module", params=REAL)
def profile(request):
    (recording,) = read([real(request.param)])
    return request.param, analyse(recording)


@pytest.mark.slow
def test_tables_tell_the_same_as_the_anatomy(profile):
    _, found = profile
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


def test_few_kernels_are_unknown(profile):
    _, found = profile
    assert found.anatomy.part(Kind.OTHER) < 0.01 * found.anatomy.busy_ms


def test_most_kernels_are_traced_to_their_operator(profile):
    _, found = profile
    known = sum(kernel.ms for kernel in found.kernels if kernel.operator)
    assert known >= 0.95 * sum(kernel.ms for kernel in found.kernels)


def test_the_timeline_is_of_one_step(profile):
    _, found = profile
    assert 0 < len(found.timeline) <= MOST_SPANS
    streams = {span.lane: span.stream for span in found.timeline}
    assert streams.pop("host") is streams.pop("idle") is None
    assert streams and streams == {f"stream {number}": number for number in streams.values()}
    for span in found.timeline:
        assert span.begin_ms >= -1e-6 and span.begin_ms + span.ms <= found.anatomy.step_ms + 1e-3
    assert [span.begin_ms for span in found.timeline] == sorted(
        span.begin_ms for span in found.timeline
    )


def test_it_can_be_written_as_json(profile):
    _, found = profile
    json.dumps(asdict(found), allow_nan=False)
    for value in asdict(found)["operators"][0].values():
        assert type(value).__module__ in ("builtins", "flatout.nouns.anatomy")


@pytest.mark.parametrize(
    ("name", "device", "capability"),
    [
        ("v100_train", "Tesla V100-SXM2-32GB", (7, 0)),
        ("mi250_toy", "AMD Radeon Graphics", (9, 0)),
        ("sampled_rank0", None, None),
    ],
)
def test_the_device(name, device, capability):
    (recording,) = read([real(name)])
    found = analyse(recording)
    assert (found.device_name, found.capability) == (device, capability)


@pytest.mark.slow
def test_what_these_traces_show():
    """Read off by eye: what a person would say of them."""
    v100, a100, mi250 = (
        analyse(read([real(name)])[0]) for name in ("v100_train", "a100_train", "mi250_toy")
    )
    assert v100.anatomy.parts[0].kind is Kind.MATMUL and v100.anatomy.part(Kind.TENSOR_CORES) == 0
    assert v100.anatomy.share(*WAITS) < 0.03 and v100.anatomy.steps == 5
    assert {one.name for one in a100.collectives} == {"all_to_all", "all_reduce"}
    ddp = analyse(read([real("a100_nccl")])[0])
    sent = {one.name: one.bytes for one in ddp.collectives}
    assert sent["all_reduce"] == pytest.approx(102.23e6, rel=0.01), "ResNet-50's gradients"
    assert {dtype for one in v100.operators if "conv" in one.name for dtype in one.dtypes}
    assert {sync.name for sync in a100.syncs} == {"aten::to", "aten::item"}
    assert mi250.anatomy.share(Kind.WAIT_HOST) > 0.9 and mi250.anatomy.steps == 1
    assert [copy.bytes for copy in mi250.copies] == [2560 * 2]


@pytest.fixture(scope="module", params=["text", "images"])
def on_cpu(request):
    name = request.param
    times, detail = (read([real(f"{name}_cpu{part}")])[0] for part in ("", "_detail"))
    return name, analyse(times, detail, roots=[EXAMPLES / name])


def test_parts_add_up_on_a_cpu(on_cpu):
    _, found = on_cpu
    anatomy = found.anatomy
    assert anatomy.device == "cpu" and found.trace_steps
    assert sum(part.ms for part in anatomy.parts) == pytest.approx(anatomy.step_ms)
    assert anatomy.parts[0].kind is Kind.MATMUL
    assert anatomy.flops and anatomy.flops > 1e9
    assert anatomy.part(Kind.OTHER) < 0.01 * anatomy.step_ms


def test_operators_tell_the_same_as_the_anatomy(on_cpu):
    """Nothing runs beside the main thread in these: own time is time."""
    _, found = on_cpu
    for kind in (Kind.MATMUL, Kind.NORMALISATION, Kind.OPTIMIZER, Kind.WAIT_DATA):
        told = sum(one.host_ms for one in found.operators if one.kind is kind)
        # The last step ends in the optimizer's hook, so within its annotation.
        share = 0.05 if kind is Kind.OPTIMIZER else 1e-6
        assert told == pytest.approx(found.anatomy.part(kind), rel=share, abs=1e-6)


def test_nearly_all_time_of_operators_has_a_line(on_cpu):
    name, found = on_cpu
    computing = [one for one in found.operators if one.kind is not Kind.PYTHON]
    placed = [one for one in computing if one.where]
    assert sum(one.host_ms for one in placed) > 0.97 * sum(one.host_ms for one in computing)
    for one in placed:
        text = (EXAMPLES / name / one.where.file).read_text().splitlines()[one.where.line - 1]
        assert text.strip() == one.where.source


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


@pytest.mark.parametrize(("name", "operator"), LINES)
def test_lines(name, operator):
    times, detail = (read([real(f"{name}_cpu{part}")])[0] for part in ("", "_detail"))
    found = analyse(times, detail, roots=[EXAMPLES / name])
    places = {str(one.where): one.where.source for one in found.operators if one.name == operator}
    assert places and all(LINES[name, operator] in source for source in places.values()), places


def test_shapes_and_backward_come_from_the_detail(on_cpu):
    _, found = on_cpu
    product = next(one for one in found.operators if one.kind is Kind.MATMUL)
    assert product.shapes and product.dtypes == ("float",) and product.flops
    assert any(one.backward and one.where for one in found.operators)
    assert found.memory and max(point.bytes for point in found.memory) > 1e5


def test_products_with_all_their_inputs(on_cpu):
    name, profile = on_cpu
    products = profile.products
    total_ms = sum(one.host_ms for one in profile.operators if one.kind is Kind.MATMUL)
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
