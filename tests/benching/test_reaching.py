"""What a step reaches of the measured ceilings."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.benching.reaching import reached
from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.ceiling import Ceiling
from flatout.nouns.profile import Profile
from flatout_agent import wire

FACTS = wire.JobFacts(torch="2.13.0", python="3.11", system="linux", device="cuda", cores=16)


def ceiling(name: str, value: float) -> Ceiling:
    return Ceiling(name, name, "cuda:0", value, "TFLOP/s")


def profile(device: str, part: Part, *ceilings: Ceiling) -> Profile:
    anatomy = Anatomy(device, 10.0, (part, Part(Kind.PYTHON, 5.0)), 6, flops=part.flops)
    return Profile(("train.py",), anatomy, ceilings=ceilings, job=FACTS)


def test_mfu_is_by_the_fastest_dtype_and_a_part_by_its_own() -> None:
    part = Part(Kind.MATMUL, 5.0, flops=1e11)
    ours = profile("cuda", part, ceiling("matmul-fp32", 40.0), ceiling("matmul-bf16", 400.0))
    found = reached(ours).anatomy
    assert found.mfu == pytest.approx(1e11 / 0.010 / 400e12)
    assert found.parts[0].ceiling == pytest.approx(1e11 / 0.005 / 40e12)
    assert found.parts[1].ceiling is None
    assert found.cores == 16


def test_on_a_cpu_its_own_ceilings_count() -> None:
    part = Part(Kind.MATMUL, 5.0, flops=1e9)
    seen = wire.LoopSeen(step_s=0.010, steps=6, main_cpu_s=0.018)
    ours = profile("cpu", part, ceiling("matmul-cpu-fp32", 0.5), ceiling("matmul-bf16", 400.0))
    found = reached(dataclasses.replace(ours, seen=seen)).anatomy
    assert found.mfu == pytest.approx(1e9 / 0.010 / 0.5e12)
    assert found.cores_busy == pytest.approx(1.8)


def test_what_moves_bytes_is_held_against_memory() -> None:
    part = Part(Kind.ELEMENTWISE, 5.0, bytes=4e9)
    memory = Ceiling("copy-device", "copy", "cuda:0", 2000.0, "GB/s")
    assert reached(profile("cuda", part, memory)).anatomy.parts[0].ceiling == pytest.approx(0.4)
    cached = Part(Kind.ELEMENTWISE, 5.0, bytes=4e10)
    assert reached(profile("cuda", cached, memory)).anatomy.parts[0].ceiling is None


def test_the_ceiling_that_is_nearer_binds() -> None:
    part = Part(Kind.TENSOR_CORES, 5.0, flops=1e11, bytes=8e9)
    memory = Ceiling("triad-device", "triad", "cuda:0", 2000.0, "GB/s")
    found = reached(profile("cuda", part, memory, ceiling("matmul-bf16", 400.0))).anatomy
    assert found.parts[0].ceiling == pytest.approx(0.8)


def test_nothing_is_claimed_where_nothing_was_measured() -> None:
    found = reached(profile("cuda", Part(Kind.MATMUL, 5.0, flops=None))).anatomy
    assert (found.mfu, found.parts[0].ceiling, found.cores_busy) == (None, None, None)
