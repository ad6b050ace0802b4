from __future__ import annotations

from typing import Any

import pytest

from diagnosing.job.kern.jobs import HALF, float32_job, of, operator
from diagnosing.job.made import changes, findings, only, profile, saved_ms
from diagnosing.job.made_parts import FORWARD
from flatout.nouns.anatomy import Kind
from machines.healthy import changed


def test_tensor_cores_idle() -> None:
    job = float32_job()
    finding = only("tensor-cores-idle", job)
    assert (finding.code, finding.boost) == ("KERN003", "bf16-autocast")
    assert finding.where == str(FORWARD), "the line that calls the model is the one to change"
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 18.9 / 259), rel=0.01)
    assert "torch.bfloat16" in changes(finding)


def test_tf32_products_gain_what_is_left() -> None:
    job = changed(float32_job(), operators__0__kind=Kind.TENSOR_CORES)
    assert saved_ms(only("tensor-cores-idle", job), job) == pytest.approx(
        60 * (1 - 131 / 259), 0.01
    )


def test_before_ampere_it_is_float16_with_a_scaler() -> None:
    turing = changed(
        float32_job(), capability=(7, 5), job__capability=(7, 5), job__bf16=False, ceilings=()
    )
    finding = only("tensor-cores-idle", turing)
    assert finding.boost == "fp16-autocast"
    assert "scaler.scale(loss)" in changes(finding)
    assert "cautious" in finding.gain.reason


@pytest.mark.parametrize(
    "facts",
    [{"job__autocast": "bfloat16"}, {"capability": (6, 1)}, {"operators__0__dtypes": HALF}],
)
def test_tensor_cores_are_not_idle(facts: dict[str, Any]) -> None:
    assert findings("tensor-cores-idle", changed(float32_job(), **facts)) == ()


def test_what_the_device_waits_for_hides_what_is_saved() -> None:
    bound = float32_job(anatomy=profile({Kind.WAIT_HOST: 104.0}).anatomy)
    gain = only("tensor-cores-idle", bound).gain
    assert "waits 104 ms" in gain.reason
    free = saved_ms(only("tensor-cores-idle", float32_job()), float32_job())
    assert saved_ms(only("tensor-cores-idle", bound), bound) < 0.6 * free


def test_fused_attention_gains_as_products_do() -> None:
    alone = float32_job()
    kernel = operator("aten::_efficient_attention_forward", Kind.ATTENTION, 20.0)
    both = of(alone, *alone.operators, kernel)
    more = saved_ms(only("tensor-cores-idle", both), both)
    cautious = 20 * (1 - 1 / 3)
    assert more - saved_ms(only("tensor-cores-idle", alone), alone) == pytest.approx(cautious, 0.01)
    assert "fused attention kernels take 20.0 ms" in only("tensor-cores-idle", both).gain.reason


@pytest.mark.parametrize(("dtypes", "gains"), [(("float",), 4.0), (HALF, 0.0), (("long",), 0.0)])
def test_what_is_between_the_products_gains_at_most_a_half(
    dtypes: tuple[str, ...], gains: float
) -> None:
    alone = float32_job()
    gelu = operator("aten::gelu", Kind.ELEMENTWISE, 16.0, dtypes=dtypes)
    updates = operator("aten::_foreach_add_", Kind.OPTIMIZER, 16.0)
    both = of(alone, *alone.operators, gelu, updates)
    more = saved_ms(only("tensor-cores-idle", both), both)
    assert more - saved_ms(only("tensor-cores-idle", alone), alone) == pytest.approx(gains, abs=0.1)


def test_where_products_are_in_16_bits_nothing_between_them_is_told_of() -> None:
    gelu = operator("aten::gelu", Kind.ELEMENTWISE, 60.0)
    assert findings("tensor-cores-idle", of(float32_job(), gelu)) == ()


def test_the_host_casts_as_well_and_that_remains() -> None:
    """An encoder whose device would be done in a third of the step: launching binds."""
    job = float32_job(anatomy__host_ms=60.0)
    launches = sum(part.launches for part in job.anatomy.parts)
    casts_ms = 4 * 12 * 60.0 / launches
    gain = only("tensor-cores-idle", job).gain
    assert casts_ms > 1
    assert gain.ratio == pytest.approx(100 / (0.75 * (60 + casts_ms)), rel=0.01)
    assert "the host's own work" in gain.reason
