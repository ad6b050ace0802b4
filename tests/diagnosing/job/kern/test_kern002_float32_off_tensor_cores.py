from __future__ import annotations

from typing import Any

import pytest

from diagnosing.job.kern.jobs import HALF, float32_job, without_job
from diagnosing.job.made import changes, findings, only, saved_ms
from flatout.nouns.anatomy import Kind
from machines.healthy import changed


def test_float32_off_tensor_cores() -> None:
    job = float32_job()
    finding = only("float32-off-tensor-cores", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN002", "model.py:30", "tf32")
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 18.9 / 131), rel=0.01)
    assert 'torch.set_float32_matmul_precision("high")' in changes(finding)


def test_products_far_below_their_ceiling_gain_less() -> None:
    far = changed(float32_job(), operators__0__flops=0.25 * 18.9e12 * 0.06)
    gain = only("float32-off-tensor-cores", far).gain
    full = only("float32-off-tensor-cores", float32_job()).gain
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
    assert findings("float32-off-tensor-cores", changed(float32_job(), **facts)) == ()


def test_tf32_from_a_trace_alone() -> None:
    finding = only("float32-off-tensor-cores", without_job(float32_job()))
    assert finding.boost is None
    amd = changed(without_job(float32_job()), device_name="AMD Instinct MI250X")
    assert findings("float32-off-tensor-cores", amd) == ()
