"""KERN001 to KERN005: products of numbers that the device computes slowly."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.job.kern.jobs import DOUBLE, HALF, float32_job, of, operator, without_job
from diagnosing.job.made import cpu_profile, findings, flow, only, profile, saved_ms
from diagnosing.job.made_parts import FORWARD, ceilings
from diagnosing.job.telling import JobTold, each_of, told
from flatout.diagnosing.job.kern import products
from flatout.nouns.anatomy import Kind
from flatout.nouns.product import ProductCalls
from flatout.nouns.profile import Place, Profile
from flatout_agent import wire
from machines.healthy import changed

DOUBLES, TF32, IDLE = "KERN001", "KERN002", "KERN003"
ON_CPU, MISALIGNED = "KERN004", "KERN005"


def test_float64_of_single_numbers_is_not_told() -> None:
    numbers = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1",))
    assert findings(DOUBLES, of(profile(), numbers)) == ()
    scalars = operator("aten::_to_copy", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=())
    assert findings(DOUBLES, of(profile(), scalars)) == (), "of no dimension"
    some = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1", "64x3"))
    assert only(DOUBLES, of(profile(), some)).code == "KERN001"


def test_products_far_below_their_ceiling_gain_less() -> None:
    far = changed(float32_job(), operators__0__flops=0.25 * 18.9e12 * 0.06)
    gain = only(TF32, far).gain
    full = only(TF32, float32_job()).gain
    assert gain.ratio < full.ratio
    assert "reach 25%" in gain.reason


@pytest.mark.parametrize(
    "facts",
    [
        {"job__matmul_precision": "high"},
        {"capability": (7, 5)},
        {"job__hip": True},
        {"operators__0__kind": Kind.TENSOR_CORES},
        {"operators__0__dtypes": HALF},
        {"operators__0__dtypes": ()},
        {"anatomy__device": "cpu"},
    ],
)
def test_float32_elsewhere_is_no_case_for_tf32(facts: dict[str, Any]) -> None:
    assert findings(TF32, changed(float32_job(), **facts)) == ()


@pytest.mark.parametrize(
    "facts",
    [{"job__autocast": "bfloat16"}, {"capability": (6, 1)}, {"operators__0__dtypes": HALF}],
)
def test_tensor_cores_are_not_idle(facts: dict[str, Any]) -> None:
    assert findings(IDLE, changed(float32_job(), **facts)) == ()


def test_what_the_device_waits_for_hides_what_is_saved() -> None:
    bound = float32_job(anatomy=profile({Kind.WAIT_HOST: 104.0}).anatomy)
    gain = only(IDLE, bound).gain
    assert "waits 104 ms" in gain.reason
    free = saved_ms(only(IDLE, float32_job()), float32_job())
    assert saved_ms(only(IDLE, bound), bound) < 0.6 * free


def test_fused_attention_gains_as_products_do() -> None:
    alone = float32_job()
    kernel = operator("aten::_efficient_attention_forward", Kind.ATTENTION, 20.0)
    both = of(alone, *alone.operators, kernel)
    more = saved_ms(only(IDLE, both), both)
    cautious = 20 * (1 - 1 / 3)
    assert more - saved_ms(only(IDLE, alone), alone) == pytest.approx(cautious, 0.01)
    assert "fused attention kernels take 20.0 ms" in only(IDLE, both).gain.reason


@pytest.mark.parametrize(("dtypes", "gains"), [(("float",), 4.0), (HALF, 0.0), (("long",), 0.0)])
def test_what_is_between_the_products_gains_at_most_a_half(
    dtypes: tuple[str, ...], gains: float
) -> None:
    alone = float32_job()
    gelu = operator("aten::gelu", Kind.ELEMENTWISE, 16.0, dtypes=dtypes)
    updates = operator("aten::_foreach_add_", Kind.OPTIMIZER, 16.0)
    both = of(alone, *alone.operators, gelu, updates)
    more = saved_ms(only(IDLE, both), both)
    assert more - saved_ms(only(IDLE, alone), alone) == pytest.approx(gains, abs=0.1)


def test_the_host_casts_as_well_and_that_remains() -> None:
    """An encoder whose device would be done in a third of the step: launching binds."""
    job = float32_job(anatomy__host_ms=60.0)
    launches = sum(part.launches for part in job.anatomy.parts)
    casts_ms = 4 * 12 * 60.0 / launches
    gain = only(IDLE, job).gain
    assert casts_ms > 1
    assert gain.ratio == pytest.approx(100 / (0.75 * (60 + casts_ms)), rel=0.01)
    assert "the host's own work" in gain.reason


CPU_BF16 = {"matmul-cpu-fp32": (0.5, "TFLOP/s"), "matmul-cpu-bf16": (2.1, "TFLOP/s")}


def cpu_products(name: str = "aten::addmm") -> Profile:
    """A job on a CPU with fast bfloat16, 200 ms of it in these products."""
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    return of(job, operator(name, Kind.MATMUL, 200.0))


def test_cpu_float32_products() -> None:
    job = cpu_products()
    finding = only(ON_CPU, job)
    assert (finding.code, finding.boost) == ("KERN004", "bf16-autocast")
    assert saved_ms(finding, job) == pytest.approx(200 * (1 - 0.5 / 2.1), rel=0.01)
    slower = ceilings({**CPU_BF16, "matmul-cpu-bf16": (0.4, "TFLOP/s")}, "cpu")
    assert findings(ON_CPU, changed(job, ceilings=slower)) == ()
    for facts in ({"job__bf16": False}, {"job__bf16": None}, {"job__autocast": "bfloat16"}):
        assert findings(ON_CPU, changed(job, **facts)) == ()


@pytest.mark.parametrize("name", ["aten::_linalg_svd", "aten::_fft_r2c"])
def test_singular_values_and_spectra_are_no_products(name: str) -> None:
    assert findings(ON_CPU, cpu_products(name)) == ()


def timed(name: str, seconds: dict[str, float], ms: float = 200.0) -> ProductCalls:
    return ProductCalls(
        name, ((4, 4), (4, 4)), ("float", "float"), ("", ""), 1.0, ms, seconds=seconds
    )


def test_products_that_were_timed_again_tell_more_than_ceilings() -> None:
    job = cpu_products()
    faster = changed(job, products=(timed("aten::addmm", {"now": 0.3, "bfloat16": 0.2}),))
    finding = only(ON_CPU, faster)
    assert saved_ms(finding, faster) == pytest.approx(200 / 3, rel=0.01)
    assert "made again" in finding.gain.reason
    step_ms = faster.anatomy.step_ms
    least_ms = step_ms - step_ms / finding.gain.low
    assert least_ms == pytest.approx((1 - products.TIMED) * 200 / 3, rel=0.01)
    slower = changed(job, products=(timed("aten::addmm", {"now": 0.2, "bfloat16": 0.3}),))
    assert findings(ON_CPU, slower) == (), "bfloat16 would cost time here"


def head(shapes: str) -> Any:
    where = Place("gpt.py", 88, "forward", "logits = self.head(x)")
    return operator("aten::mm", Kind.TENSOR_CORES, 30.0, shapes=(shapes,), dtypes=HALF, where=where)


SILENT = [
    # float64 of a loss alone is not told
    (DOUBLES, of(profile(), operator("aten::mul", Kind.ELEMENTWISE, 0.4, dtypes=DOUBLE))),
    (DOUBLES, of(profile(), operator("aten::mm", Kind.MATMUL, 60.0, dtypes=("long", "float")))),
    # tf32 from a trace alone
    (TF32, changed(without_job(float32_job()), device_name="AMD Instinct MI250X")),
    # where products are in 16 bits nothing between them is told of
    (IDLE, of(float32_job(), operator("aten::gelu", Kind.ELEMENTWISE, 60.0))),
    # dimension of the vocabulary
    (MISALIGNED, of(profile(), head("8192x768, 768x50304"))),
    (MISALIGNED, of(profile(), head("8191x768, 768x50304"))),
    (MISALIGNED, of(profile(), head("8192x768, 768x10"))),
]


@pytest.mark.parametrize(("check", "job"), SILENT)
def test_nothing_is_told(check: str, job: Profile) -> None:
    assert findings(check, job) == ()


TOLD = [
    told("float64", DOUBLES,
         of(profile(job__models__0__dtype="float64"), operator("aten::mm", Kind.MATMUL, 60.0,
             dtypes=DOUBLE), operator("aten::add", Kind.ELEMENTWISE, 10.0, dtypes=DOUBLE)),
         "17.6 TFLOP/s in fp64 and 18.9 in fp32", "model.float()", where="model.py:30", boost=None,
         saves=60 * (1 - 17.6 / 18.9) + 5),
    told("where float64 enters", DOUBLES,
         of(profile(seen__flow=flow(doubles=(wire.DoubleSeen("batch", None, '["x"]', 40, 0.01),
             wire.DoubleSeen("aten.lift_fresh", "loss.py:7", "", 12, 0.001)))),
             operator("aten::mm", Kind.MATMUL, 60.0, dtypes=DOUBLE)),
         'the batch\'s field ["x"] is float64 at train.py:80',
         "from Python or NumPy values at loss.py:7", "# loss.py:7", "astype(numpy.float32)",
         where="train.py:80"),
    told("a default dtype of float64", DOUBLES,
         of(profile(seen__flow=flow(doubles=(wire.DoubleSeen("parameter", "model.py:30", "", 40,
             0.01),), default_double=True), seen__double_where="train.py:5"), operator("aten::mm",
             Kind.MATMUL, 60.0, dtypes=DOUBLE)),
         "default dtype is float64", where="train.py:5"),
    told("float32 off tensor cores", TF32, float32_job(),
         'torch.set_float32_matmul_precision("high")', where="model.py:30", boost="tf32",
         saves=60 * (1 - 18.9 / 131)),
    told("tf32 from a trace alone", TF32, without_job(float32_job()), boost=None),
    told("tensor cores idle", IDLE, float32_job(), "torch.bfloat16", where=str(FORWARD),
         boost="bf16-autocast", saves=60 * (1 - 18.9 / 259)),
    told("tf32 products gain what is left", IDLE,
         changed(float32_job(), operators__0__kind=Kind.TENSOR_CORES), saves=60 * (1 - 131 / 259)),
    told("before ampere it is float16 with a scaler", IDLE,
         changed(float32_job(), capability=(7, 5), job__capability=(7, 5), job__bf16=False,
             ceilings=()),
         "scaler.scale(loss)", "cautious", boost="fp16-autocast"),
    told("too few timed products do not speak for all", ON_CPU,
         changed(cpu_products(), products=(timed("aten::addmm", {"now": 0.2, "bfloat16": 0.3},
             ms=60.0), timed("aten::addmm", {}, ms=140.0))),
         saves=200 * (1 - 0.5 / 2.1)),
    told("dimension of the vocabulary", MISALIGNED,
         of(profile(), head("8192x768, 768x50257")),
         "50257 = 8 * 6282 + 1", "size = 50264", where="gpt.py:88"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
