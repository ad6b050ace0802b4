from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import DOUBLE, of, operator
from diagnosing.job.made import cpu_profile, findings, only, profile, saved_ms
from diagnosing.job.made_parts import CONV
from flatout.nouns.anatomy import Kind
from machines.healthy import changed


def test_onednn_unused() -> None:
    slow = operator("aten::_slow_conv2d_forward", Kind.MATMUL, 120.0, where=CONV)
    job = of(cpu_profile(), slow)
    finding = only("onednn-unused", job)
    assert (finding.code, finding.where) == ("KERN018", str(CONV))
    assert saved_ms(finding, job) == pytest.approx(60.0, rel=0.01)
    counted = changed(job, operators__0__flops=6.2e9)
    needed = 6.2e9 / (0.62e12 * 0.4) * 1e3
    assert saved_ms(only("onednn-unused", counted), counted) == pytest.approx(
        120 - needed, rel=0.01
    )
    back = operator("aten::convolution_backward", Kind.MATMUL, 80.0, where=CONV, backward=True)
    both = of(cpu_profile(), slow, back)
    assert saved_ms(only("onednn-unused", both), both) == pytest.approx(100.0, rel=0.01)
    assert findings("onednn-unused", changed(job, operators__0__dtypes=DOUBLE)) == ()
    assert findings("onednn-unused", of(profile(), slow)) == ()


def test_of_single_small_images_torch_itself_leaves_it_out() -> None:
    name, small = "aten::_slow_conv2d_forward", ("1x16x8x8, 32x16x3x3, 32",)
    single = operator(name, Kind.MATMUL, 120.0, where=CONV, shapes=small)
    assert findings("onednn-unused", of(cpu_profile(), single)) == ()
    large = operator(name, Kind.MATMUL, 120.0, where=CONV, shapes=("1x64x128x128, 64x64x3x3, 64",))
    assert only("onednn-unused", of(cpu_profile(), single, large)).code == "KERN018"
