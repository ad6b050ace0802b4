"""LOOP016 to LOOP018, LOOP024: what the tensors of watched steps show to be needless."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, codes, cpu_profile, findings, flow, only, profile, saved_ms
from diagnosing.job.made_parts import CPU_OPERATORS_MS, GPU_OPERATORS_MS
from diagnosing.job.telling import JobTold, each_of, told
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from flatout_agent import wire
from machines.healthy import changed

UNREAD, BUILT = "LOOP016", "LOOP017"
UNUSED, AGAIN = "LOOP018", "LOOP024"
SECOND = wire.UnreadSeen("ResNet()", "train.py:90", s=0.06, flops=0.25)


def cpu(**rows: Any) -> Profile:
    return cpu_profile(seen__flow=flow(**rows))


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


TWICE = wire.AgainSeen("train.py:31", "train.py:81", calls=2.0, s=0.06, flops=0.3)


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


TOLD = [
    told("a second forward pass", UNREAD, cpu(unread=(SECOND,)),
         "ResNet is called and nobody reads the result", "- extra = model(x)", where="train.py:90",
         saves=0.2 * CPU_OPERATORS_MS),
    told("operators that take long are told", UNREAD,
         cpu(unread=(wire.UnreadSeen("mm, softmax", "train.py:91", s=0.06),)), "mm, softmax"),
    told("a function that calls the model", UNREAD,
         cpu(unread=(dataclasses.replace(SECOND, what="probe()", module="ResNet"),)),
         "probe is called and nobody reads the result", "it calls ResNet", "- extra = probe(...)"),
    told("derivatives that nobody reads", UNREAD,
         cpu(unread=(wire.UnreadSeen("autograd.grad", "pde.py:23", calls=2, s=0.02),)),
         "derivatives", "step % 100", where="pde.py:23"),
    told("without recorded lines the counted step tells", BUILT, building(cpu_profile(), CONSTANT),
         saves=12.0),
    told("a mask on a gpu by the time of its kernels and only likely", BUILT,
         building(profile(), dataclasses.replace(CONSTANT, compared=False), *making(1.0, 6.0)),
         "likely", saves=pytest.approx(6.0, rel=0.05)),
    told("a backbone that no optimizer has", UNUSED, cpu(gradients=BACKBONE), "Backbone", "145,872",
         "+ with torch.no_grad():", "requires_grad_(False)", where="train.py:32",
         saves=0.5 * CPU_OPERATORS_MS),
    told("the backward pass has to go through it", UNUSED,
         cpu(gradients=dataclasses.replace(BACKBONE, after_trained=True)),
         never=("+ with torch.no_grad():",)),
    told("the backward pass has to go through it: 2", UNUSED,
         cpu(gradients=dataclasses.replace(BACKBONE, what="")), "parameters that no optimizer has"),
    told("gradients that backward leaves in grad", AGAIN, cpu(again=(TWICE,)),
         "backward computes as well", "2 such calls a step, and the pass at train.py:81",
         "+ grads = [p.grad for p in parameters]", where="train.py:31",
         saves=0.2 * CPU_OPERATORS_MS),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
