from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, codes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from flatout_agent import wire

MASK = Place("model.py", 12, "forward", "mask = torch.triu(torch.ones(n, n), 1)")
ROW = wire.ConstantSeen(
    where=str(MASK),
    lines=(str(MASK),),
    operators=("aten.ones", "aten.triu"),
    shape="2048x2048",
    dtype="float32",
    bytes=2048 * 2048 * 4,
    s=0.012,
)


def job(made: Profile, row: wire.ConstantSeen, *more: Operator) -> Profile:
    assert made.seen is not None
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, constants=(row,))
    return dataclasses.replace(
        made,
        operators=(*more, *made.operators),
        seen=dataclasses.replace(made.seen, flow=flow),
    )


def making(host_ms: float, device_ms: float = 0.0) -> tuple[Operator, ...]:
    return (
        Operator("aten::triu", Kind.ELEMENTWISE, 1.0, host_ms / 2, device_ms / 2, where=MASK),
        Operator("aten::fill_", Kind.ELEMENTWISE, 1.0, host_ms / 2, device_ms / 2, where=MASK),
        Operator("aten::mm", Kind.MATMUL, 1.0, 50.0, 5.0, where=MASK),
    )


def test_a_mask_on_the_cpu() -> None:
    made = job(cpu_profile(), ROW, *making(11.0))
    finding = only("constant-built-each-step", made)
    assert (finding.code, finding.where) == ("LOOP017", "model.py:12")
    assert saved_ms(finding, made) == pytest.approx(11.0, rel=0.01)
    assert "16.0 MiB" in finding.evidence or "16 MiB" in finding.evidence
    assert f"- {MASK.source}" in changes(finding)
    assert "register_buffer" in changes(finding)


def test_without_recorded_lines_the_counted_step_tells() -> None:
    made = job(cpu_profile(), ROW)
    assert saved_ms(only("constant-built-each-step", made), made) == pytest.approx(12.0, rel=0.01)


def test_on_a_gpu_by_the_time_of_its_kernels_and_only_likely() -> None:
    made = job(profile(), dataclasses.replace(ROW, compared=False), *making(1.0, 6.0))
    finding = only("constant-built-each-step", made)
    assert saved_ms(finding, made) == pytest.approx(6.0, rel=0.05)
    assert "likely" in finding.title


def test_what_costs_nothing_is_not_told() -> None:
    assert findings("constant-built-each-step", job(cpu_profile(), ROW, *making(0.5))) == ()
    assert findings("constant-built-each-step", cpu_profile()) == ()


def test_the_same_line_is_told_by_one_check() -> None:
    made = job(cpu_profile(), ROW, *making(11.0))
    assert {"LOOP017"} == set(codes(made)) & {"LOOP017", "COPY004"}
