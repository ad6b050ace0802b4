"""LOOP016 to LOOP018, LOOP024: what the tensors of watched steps show to be needless."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, codes, cpu_profile, findings, flow, only, profile, saved_ms
from diagnosing.job.made_parts import CPU_OPERATORS_MS, GPU_OPERATORS_MS
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from flatout_agent import wire
from machines.healthy import changed

UNREAD, BUILT = "result-unread", "constant-built-each-step"
UNUSED, AGAIN = "gradients-unused", "computed-again"
SECOND = wire.UnreadSeen("ResNet()", "train.py:90", s=0.06, flops=0.25)


def cpu(**rows: Any) -> Profile:
    return cpu_profile(seen__flow=flow(**rows))


def test_a_second_forward_pass() -> None:
    job = cpu(unread=(SECOND,))
    finding = only(UNREAD, job)
    assert (finding.code, finding.where) == ("LOOP016", "train.py:90")
    assert finding.title == "ResNet is called and nobody reads the result"
    assert saved_ms(finding, job) == pytest.approx(0.2 * CPU_OPERATORS_MS, rel=0.01)
    assert "- extra = model(x)" in changes(finding)


def test_operators_that_take_long_are_told() -> None:
    large = wire.UnreadSeen("mm, softmax", "train.py:91", s=0.06)
    assert "mm, softmax" in only(UNREAD, cpu(unread=(large,))).title


def test_a_function_that_calls_the_model() -> None:
    row = dataclasses.replace(SECOND, what="probe()", module="ResNet")
    finding = only(UNREAD, cpu(unread=(row,)))
    assert finding.title == "probe is called and nobody reads the result"
    assert "it calls ResNet" in finding.evidence
    assert "- extra = probe(...)" in changes(finding)


def test_derivatives_that_nobody_reads() -> None:
    row = wire.UnreadSeen("autograd.grad", "pde.py:23", calls=2, s=0.02)
    finding = only(UNREAD, cpu(unread=(row,)))
    assert finding.where == "pde.py:23"
    assert "derivatives" in finding.title
    assert "step % 100" in changes(finding)


MASK = Place("model.py", 12, "forward", "mask = torch.triu(torch.ones(n, n), 1)")
CONSTANT = wire.ConstantSeen(
    where=str(MASK),
    lines=(str(MASK),),
    operators=("aten.ones", "aten.triu"),
    shape="2048x2048",
    dtype="float32",
    bytes=2048 * 2048 * 4,
    s=0.012,
)


def building(made: Profile, row: wire.ConstantSeen, *more: Operator) -> Profile:
    built: Profile = changed(
        made, operators=(*more, *made.operators), seen__flow=flow(constants=(row,))
    )
    return built


def making(host_ms: float, device_ms: float = 0.0) -> tuple[Operator, ...]:
    return (
        Operator("aten::triu", Kind.ELEMENTWISE, 1.0, host_ms / 2, device_ms / 2, where=MASK),
        Operator("aten::fill_", Kind.ELEMENTWISE, 1.0, host_ms / 2, device_ms / 2, where=MASK),
        Operator("aten::mm", Kind.MATMUL, 1.0, 50.0, 5.0, where=MASK),
    )


def test_a_mask_on_the_cpu() -> None:
    made = building(cpu_profile(), CONSTANT, *making(11.0))
    finding = only(BUILT, made)
    assert (finding.code, finding.where) == ("LOOP017", "model.py:12")
    assert saved_ms(finding, made) == pytest.approx(11.0, rel=0.01)
    assert "16.0 MiB" in finding.evidence or "16 MiB" in finding.evidence
    assert f"- {MASK.source}" in changes(finding)
    assert "register_buffer" in changes(finding)


def test_without_recorded_lines_the_counted_step_tells() -> None:
    made = building(cpu_profile(), CONSTANT)
    assert saved_ms(only(BUILT, made), made) == pytest.approx(12.0, rel=0.01)


def test_a_mask_on_a_gpu_by_the_time_of_its_kernels_and_only_likely() -> None:
    made = building(profile(), dataclasses.replace(CONSTANT, compared=False), *making(1.0, 6.0))
    finding = only(BUILT, made)
    assert saved_ms(finding, made) == pytest.approx(6.0, rel=0.05)
    assert "likely" in finding.title


def test_the_same_line_is_told_by_one_check() -> None:
    made = building(cpu_profile(), CONSTANT, *making(11.0))
    assert {"LOOP017"} == set(codes(made)) & {"LOOP017", "COPY004"}


BACKBONE = wire.GradientsSeen(
    "Backbone",
    "train.py:32",
    tensors=8,
    parameters=145_872,
    after_trained=False,
    s=0.15,
    flops=0.6,
)


def test_a_backbone_that_no_optimizer_has() -> None:
    job = cpu(gradients=BACKBONE)
    finding = only(UNUSED, job)
    assert (finding.code, finding.where) == ("LOOP018", "train.py:32")
    assert "Backbone" in finding.title
    assert "145,872" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(0.5 * CPU_OPERATORS_MS, rel=0.01)
    assert "+ with torch.no_grad():" in changes(finding)
    assert "requires_grad_(False)" in changes(finding)


def test_the_backward_pass_has_to_go_through_it() -> None:
    job = cpu(gradients=dataclasses.replace(BACKBONE, after_trained=True))
    assert "+ with torch.no_grad():" not in changes(only(UNUSED, job))
    scattered = dataclasses.replace(BACKBONE, what="")
    finding = only(UNUSED, cpu(gradients=scattered))
    assert "parameters that no optimizer has" in finding.title


TWICE = wire.AgainSeen("train.py:31", "train.py:81", calls=2.0, s=0.06, flops=0.3)


def test_gradients_that_backward_leaves_in_grad() -> None:
    job = cpu(again=(TWICE,))
    finding = only(AGAIN, job)
    assert (finding.code, finding.where) == ("LOOP024", "train.py:31")
    assert "backward computes as well" in finding.title
    assert "2 such calls a step, and the pass at train.py:81" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(0.2 * CPU_OPERATORS_MS, rel=0.01)
    assert "+ grads = [p.grad for p in parameters]" in changes(finding)


@pytest.mark.parametrize(
    ("check", "rows", "share"),
    [
        (UNREAD, {"unread": (SECOND,)}, 0.25),
        (UNUSED, {"gradients": BACKBONE}, 0.6),
        (AGAIN, {"again": (TWICE,)}, 0.3),
    ],
)
def test_on_a_gpu_by_their_share_of_the_operations(
    check: str, rows: dict[str, Any], share: float
) -> None:
    job = profile(seen__flow=flow(**rows))
    assert saved_ms(only(check, job), job) == pytest.approx(share * GPU_OPERATORS_MS, rel=0.05)


SILENT = [
    (UNREAD, cpu(unread=(wire.UnreadSeen("softmax", "train.py:91", s=0.02),))),
    (BUILT, building(cpu_profile(), CONSTANT, *making(0.5))),
    (UNUSED, cpu(gradients=dataclasses.replace(BACKBONE, s=0.005))),
    (UNUSED, cpu(gradients=None)),
    (AGAIN, cpu(again=(dataclasses.replace(TWICE, s=0.001),))),
    (AGAIN, cpu(again=())),
]


@pytest.mark.parametrize(("check", "job"), SILENT)
def test_nothing_is_told(check: str, job: Profile) -> None:
    assert findings(check, job) == ()
