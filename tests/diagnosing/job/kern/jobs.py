"""Jobs and their parts for the tests of KERN."""

from __future__ import annotations

import dataclasses
from typing import Any

from diagnosing.job.made import profile
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from machines.healthy import changed

MLP = Place("model.py", 30, "forward", "x = self.up(x)")
HALF, FLOAT, DOUBLE = ("c10::BFloat16",), ("float",), ("double",)


def operator(name: str, kind: Kind, ms: float, **facts: Any) -> Operator:
    """One operator that takes this long on the device and on the host alike."""
    base = Operator(name, kind, 12.0, ms, ms, ("4096x1024, 1024x4096",), FLOAT, MLP)
    return dataclasses.replace(base, **facts)


def of(base: Profile, *operators: Operator, parts: dict[Kind, float] | None = None) -> Profile:
    """A job of these operators alone."""
    made: Profile = changed(base, operators=operators, kernels=())
    return made


def without_job(base: Profile) -> Profile:
    """As from a trace alone."""
    made: Profile = changed(base, job=None, seen=None, command=())
    return made


def float32_job(**facts: Any) -> Profile:
    """A transformer on an A100 in plain float32, 60 ms of 100 ms in products."""
    base = profile(
        job__autocast=None,
        job__matmul_precision="highest",
        job__models__0__conv2d=0,
        job__models__0__matmul=48,
        **facts,
    )
    return of(base, operator("aten::mm", Kind.MATMUL, 60.0))


def attention(**facts: Any) -> tuple[Operator, ...]:
    """Eight heads of a batch of four, 512 long."""
    scores = "4x8x512x512"
    line = Place("attention.py", 21, "forward", "weights = scores.softmax(-1)")
    parts = (
        Operator("aten::bmm", Kind.TENSOR_CORES, 12, 1, 9.0, ("32x512x64, 32x64x512",), HALF, line),
        Operator(
            "aten::bmm", Kind.TENSOR_CORES, 12, 1, 9.0, ("32x512x512, 32x512x64",), HALF, line
        ),
        Operator("aten::_softmax", Kind.REDUCTION, 12, 1, 8.0, (f"{scores}",), FLOAT, line),
        Operator("aten::div", Kind.ELEMENTWISE, 12, 1, 4.0, (scores,), HALF, line),
    )
    return tuple(dataclasses.replace(part, **facts) for part in parts)
