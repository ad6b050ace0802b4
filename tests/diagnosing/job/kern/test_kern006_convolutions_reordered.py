from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import without_job
from diagnosing.job.made import cpu_profile, findings, only, profile, saved_ms
from diagnosing.job.made_parts import ceilings
from flatout.diagnosing.job import operators
from flatout.nouns.anatomy import Kind
from flatout.nouns.product import ProductCalls
from flatout.nouns.profile import Kernel, Profile
from machines.healthy import changed


def test_convolutions_channels_first_on_a_gpu() -> None:
    job = profile(job__models__0__channels_last=False)
    moving = Kernel("void cudnn::nchwToNhwcKernel<__nv_bfloat16>", Kind.CONVERSION, 106.0, 6.0)
    job = changed(job, kernels=(*job.kernels, moving))
    finding = only("convolutions-reordered", job)
    assert (finding.code, finding.boost) == ("KERN006", "channels-last")
    took = 34.6 + 17.3
    assert saved_ms(finding, job) == pytest.approx(6 + (took - 6) * (1 - 118 / 171), rel=0.01)
    assert "nchwToNhwcKernel" in finding.evidence


def test_convolutions_channels_first_on_a_cpu() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only("convolutions-reordered", job).boost == "channels-last"
    measured = {"conv-cpu-nchw-fp32": (0.40, "TFLOP/s"), "conv-cpu-nhwc-fp32": (0.40, "TFLOP/s")}
    even = changed(job, ceilings=ceilings(measured, "cpu"))
    assert findings("convolutions-reordered", even) == ()
    assert findings("convolutions-reordered", without_job(job)) == ()


def test_what_a_boost_cures_already_is_not_told() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only("convolutions-reordered", job).boost == "channels-last"
    assert findings("convolutions-reordered", changed(job, boosts=("channels-last",))) == ()


def test_convolutions_that_were_timed_again_decide() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    shapes, dtypes = ((2, 3, 8, 8), (4, 3, 3, 3)), ("float", "float")
    names = {
        operator.name for operator in job.operators if operators.CONVOLVES.fullmatch(operator.name)
    }

    def with_last(seconds: float) -> Profile:
        times = {"now": 0.2, "channels-last": seconds}
        rows = [ProductCalls(n, shapes, dtypes, ("", ""), 1.0, 9.0, seconds=times) for n in names]
        return changed(job, products=tuple(rows))

    assert findings("convolutions-reordered", with_last(0.25)) == ()
    half = only("convolutions-reordered", with_last(0.1))
    assert "made again" in half.gain.reason
    assert half.gain.ratio > only("convolutions-reordered", job).gain.ratio
