from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from diagnosing.job.made_parts import CONV
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Kernel


def test_kernels_fill_gpu_badly() -> None:
    low = Kernel(
        "reduce_kernel<512, 1>", Kind.REDUCTION, 40.0, 20.0, "aten::sum", CONV, False, 0.05
    )
    job = profile(kernels=(low,))
    finding = only("kernels-fill-gpu-badly", job)
    assert (finding.code, finding.where) == ("KERN014", str(CONV))
    assert saved_ms(finding, job) == pytest.approx(20 * (1 - 0.05 / 0.4) / 2, rel=0.01)
    for facts in ({"occupancy": 0.9}, {"occupancy": None}, {"kind": Kind.TENSOR_CORES}):
        other = dataclasses.replace(low, **facts)
        assert findings("kernels-fill-gpu-badly", profile(kernels=(other,))) == ()
    short = dataclasses.replace(low, calls=4000.0)
    assert findings("kernels-fill-gpu-badly", profile(kernels=(short,))) == ()
