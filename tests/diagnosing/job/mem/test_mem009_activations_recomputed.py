from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import GIB, changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place
from flatout_agent import wire
from machines.healthy import changed


def test_activations_recomputed() -> None:
    line = Place("gpt.py", 70, "forward", "x = checkpoint(block, x, use_reentrant=False)")
    twice = Operator("aten::mm", Kind.TENSOR_CORES, 24, 1.0, 20.0, (), (), line)
    job = profile(operators=(twice,), seen__memory_peak_bytes=20 * GIB)
    finding = only("activations-recomputed", job)
    assert (finding.code, finding.where) == ("MEM009", "gpt.py:70")
    assert saved_ms(finding, job) == pytest.approx(0.2 * 90.0, rel=0.01)
    full = changed(job, seen__memory_peak_bytes=70 * GIB)
    assert findings("activations-recomputed", full) == (), "there it is needed"
    assert findings("activations-recomputed", profile(seen__memory_peak_bytes=20 * GIB)) == ()


ROW = wire.RecomputedSeen("gpt.py:56", operators=80, bytes=2 * GIB, s=0.06, flops=0.2)


def flow(row: wire.RecomputedSeen | None) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, recomputed=row)


def test_operators_that_a_checkpoint_calls_again() -> None:
    memory = {"seen__memory_peak_bytes": GIB, "seen__memory_total_bytes": 24 * GIB}
    job = cpu_profile(seen__flow=flow(ROW), **memory)
    finding = only("activations-recomputed", job)
    assert (finding.code, finding.where) == ("MEM009", "gpt.py:56")
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.2 * operators_ms, rel=0.01)
    assert "+ x = block(x)" in changes(finding)
    library = changed(job, seen__checkpointing_where="train.py:12")
    assert only("activations-recomputed", library).where == "train.py:12"
    large = dataclasses.replace(ROW, bytes=12 * GIB)
    assert findings("activations-recomputed", changed(job, seen__flow=flow(large))) == ()
    assert findings("activations-recomputed", changed(job, seen__flow=flow(None))) == ()
    unknown = changed(job, seen__memory_total_bytes=None)
    assert findings("activations-recomputed", unknown) == ()


def test_on_a_gpu_by_the_operations() -> None:
    job = profile(seen__flow=flow(ROW), seen__memory_peak_bytes=20 * GIB)
    device_ms = 34.6 + 17.3 + 18.0 + 17.0 + 0.1 + 0.1 + 1.5
    saved = saved_ms(only("activations-recomputed", job), job)
    assert saved == pytest.approx(0.2 * device_ms, rel=0.05)
