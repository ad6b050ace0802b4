from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import cpu_profile, findings, only, saved_ms
from diagnosing.job.made_parts import ceilings
from flatout.diagnosing.job.kern import products
from flatout.nouns.anatomy import Kind
from flatout.nouns.product import ProductCalls
from machines.healthy import changed

CPU_BF16 = {"matmul-cpu-fp32": (0.5, "TFLOP/s"), "matmul-cpu-bf16": (2.1, "TFLOP/s")}


def test_cpu_float32_products() -> None:
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    job = of(job, operator("aten::addmm", Kind.MATMUL, 200.0))
    finding = only("cpu-float32-products", job)
    assert (finding.code, finding.boost) == ("KERN004", "bf16-autocast")
    assert saved_ms(finding, job) == pytest.approx(200 * (1 - 0.5 / 2.1), rel=0.01)
    slower = ceilings({**CPU_BF16, "matmul-cpu-bf16": (0.4, "TFLOP/s")}, "cpu")
    assert findings("cpu-float32-products", changed(job, ceilings=slower)) == ()
    for facts in ({"job__bf16": False}, {"job__bf16": None}, {"job__autocast": "bfloat16"}):
        assert findings("cpu-float32-products", changed(job, **facts)) == ()


@pytest.mark.parametrize("name", ["aten::_linalg_svd", "aten::_fft_r2c"])
def test_singular_values_and_spectra_are_no_products(name: str) -> None:
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    decomposing = of(job, operator(name, Kind.MATMUL, 200.0))
    assert findings("cpu-float32-products", decomposing) == ()


def timed(name: str, seconds: dict[str, float], ms: float = 200.0) -> ProductCalls:
    return ProductCalls(
        name, ((4, 4), (4, 4)), ("float", "float"), ("", ""), 1.0, ms, seconds=seconds
    )


def test_products_that_were_timed_again_tell_more_than_ceilings() -> None:
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    job = of(job, operator("aten::addmm", Kind.MATMUL, 200.0))
    faster = changed(job, products=(timed("aten::addmm", {"now": 0.3, "bfloat16": 0.2}),))
    finding = only("cpu-float32-products", faster)
    assert saved_ms(finding, faster) == pytest.approx(200 / 3, rel=0.01)
    assert "made again" in finding.gain.reason
    step_ms = faster.anatomy.step_ms
    least_ms = step_ms - step_ms / finding.gain.low
    assert least_ms == pytest.approx((1 - products.TIMED) * 200 / 3, rel=0.01)
    slower = changed(job, products=(timed("aten::addmm", {"now": 0.2, "bfloat16": 0.3}),))
    assert findings("cpu-float32-products", slower) == (), "bfloat16 would cost time here"


def test_too_few_timed_products_do_not_speak_for_all() -> None:
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    job = of(job, operator("aten::addmm", Kind.MATMUL, 200.0))
    some = timed("aten::addmm", {"now": 0.2, "bfloat16": 0.3}, ms=60.0)
    job = changed(job, products=(some, timed("aten::addmm", {}, ms=140.0)))
    finding = only("cpu-float32-products", job)
    assert saved_ms(finding, job) == pytest.approx(200 * (1 - 0.5 / 2.1), rel=0.01)
