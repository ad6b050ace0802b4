"""MEM: memory of the device that costs time, runs out, or lies idle."""

from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import (
    GIB,
    MIB,
    changes,
    codes,
    cpu_profile,
    findings,
    flow,
    only,
    profile,
    saved_ms,
)
from diagnosing.job.made_parts import CONV, CPU_OPERATORS_MS, FORWARD, GPU_OPERATORS_MS
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap, Operator, Place
from flatout_agent.wire import RecomputedSeen
from machines.healthy import changed

ASKED = "driver-asked-for-memory"
EMPTY, GROWING = "memory-mostly-empty", "memory-growing"
LOGITS = "logits-large"
ZEROED, RECOMPUTED = "gradients-zeroed-in-place", "activations-recomputed"
MALLOC = Gap(Kind.WAIT_OTHER, ms=9.0, count=6.0, doing="cudaMalloc", where=CONV)


def test_allocator_retries() -> None:
    job = profile(seen__alloc_retries=4, seen__memory_peak_bytes=78 * GIB)
    finding = only(ASKED, job)
    assert (finding.code, finding.boost) == ("MEM001", "allocator")
    assert "78 GiB of 80 GiB in use at most" in finding.evidence
    assert finding.gain is None
    waiting = changed(job, gaps=(*job.gaps, MALLOC))
    assert saved_ms(only(ASKED, waiting), waiting) == pytest.approx(9.0, rel=0.01)
    assert "tried again 4 times" in only(ASKED, waiting).title


def test_device_memory_asked_each_step() -> None:
    job = profile(gaps=(MALLOC,))
    finding = only(ASKED, job)
    assert (finding.code, finding.where, finding.boost) == ("MEM001", str(CONV), "allocator")
    assert finding.title == "the driver is asked for memory in each step: 9.00 ms"
    assert saved_ms(finding, job) == pytest.approx(9.0, rel=0.01)


def test_memory_mostly_empty() -> None:
    parts = {Kind.WAIT_HOST: 40.0, Kind.OPTIMIZER: 10.0}
    job = profile(parts, seen__memory_peak_bytes=8 * GIB)
    finding = only(EMPTY, job)
    assert finding.code == "MEM004"
    fixed = 25_557_032 * 16
    assert (0.85 * 80 * GIB - fixed) / (8 * GIB - fixed) > 8
    assert "8 times as large" in finding.title
    assert "batch size 256, 2048 would fit" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(50.0 * 7 / 8, rel=0.01)
    assert findings(EMPTY, profile(parts)) == ()
    fed = profile({Kind.WAIT_HOST: 0.2, Kind.OPTIMIZER: 0.2}, seen__memory_peak_bytes=8 * GIB)
    assert findings(EMPTY, fed) == (), "nothing is gained by a larger batch"


def test_losses_kept() -> None:
    kept = tuple(9 * GIB + step * 180 * MIB for step in range(12))
    job = profile(
        seen__losses_kept=True, seen__backward_where="train.py:88", seen__memory_bytes=kept
    )
    finding = only(GROWING, job)
    assert (finding.code, finding.where) == ("MEM005", "train.py:88")
    assert "180 MiB a step" in finding.evidence
    assert "loss.detach()" in changes(finding)
    assert [code for code in codes(job) if code.startswith("MEM")] == ["MEM005"]


def test_memory_growing() -> None:
    grows = tuple(9 * GIB + step * 100 * MIB for step in range(12))
    finding = only(GROWING, profile(seen__memory_bytes=grows))
    assert finding.code == "MEM005"
    assert "100 MiB a step" in finding.title
    assert "full after 716 more steps" in finding.evidence


@pytest.mark.parametrize(
    "memory",
    [
        (),
        (9 * GIB, 10 * GIB, 11 * GIB),
        (9 * GIB, *(10 * GIB,) * 11),
        tuple(9 * GIB + step % 4 * GIB for step in range(12)),
        tuple(9 * GIB + step * 4096 for step in range(12)),
    ],
)
def test_memory_that_settles_or_swings_does_not_grow(memory: tuple[int, ...]) -> None:
    assert findings(GROWING, profile(seen__memory_bytes=memory)) == ()


def test_a_process_on_a_cpu_grows_a_little_by_itself() -> None:
    little = tuple(2 * GIB + step * MIB for step in range(12))
    assert findings(GROWING, cpu_profile(seen__memory_bytes=little)) == ()
    much = tuple(2 * GIB + step * 20 * MIB for step in range(12))
    assert only(GROWING, cpu_profile(seen__memory_bytes=much))


def test_logits_large() -> None:
    logits = Operator(
        "aten::_log_softmax", Kind.REDUCTION, 1, 0.1, 9.0, ("32768x50304",), ("float",), FORWARD
    )
    job = profile(operators=(logits,))
    finding = only(LOGITS, job)
    assert (finding.code, finding.where) == ("MEM007", str(FORWARD))
    assert "6.1 GiB" in finding.title
    assert saved_ms(finding, job) == pytest.approx(9.0 * 0.4, rel=0.01)
    few = dataclasses.replace(logits, shapes=("32768x1000",))
    assert findings(LOGITS, profile(operators=(few,))) == ()
    small = dataclasses.replace(logits, shapes=("512x50304",))
    assert findings(LOGITS, profile(operators=(small,))) == ()


def test_gradients_zeroed_in_place() -> None:
    line = Place("train.py", 83, "train", "optimizer.zero_grad(set_to_none=False)")
    zeros = Operator("aten::_foreach_zero_", Kind.ELEMENTWISE, 1, 0.1, 3.0, (), ("float",), line)
    adding = Operator(
        "aten::add_", Kind.ELEMENTWISE, 161, 0.5, 4.0, (), ("float",), None, backward=True
    )
    job = profile(operators=(zeros, adding))
    finding = only(ZEROED, job)
    assert (finding.code, finding.where) == ("MEM008", "train.py:83")
    assert saved_ms(finding, job) == pytest.approx(7.0, rel=0.01)
    few = profile(operators=(zeros, dataclasses.replace(adding, calls=8)))
    assert saved_ms(only(ZEROED, few), few) == pytest.approx(3.0, rel=0.01)
    other = dataclasses.replace(zeros, where=Place("train.py", 9, "train", "mask.zero_()"))
    assert findings(ZEROED, profile(operators=(other, adding))) == ()


def test_activations_recomputed() -> None:
    line = Place("gpt.py", 70, "forward", "x = checkpoint(block, x, use_reentrant=False)")
    twice = Operator("aten::mm", Kind.TENSOR_CORES, 24, 1.0, 20.0, (), (), line)
    job = profile(operators=(twice,), seen__memory_peak_bytes=20 * GIB)
    finding = only(RECOMPUTED, job)
    assert (finding.code, finding.where) == ("MEM009", "gpt.py:70")
    assert saved_ms(finding, job) == pytest.approx(0.2 * 90.0, rel=0.01)
    full = changed(job, seen__memory_peak_bytes=70 * GIB)
    assert findings(RECOMPUTED, full) == (), "there it is needed"
    assert findings(RECOMPUTED, profile(seen__memory_peak_bytes=20 * GIB)) == ()


AGAIN = RecomputedSeen("gpt.py:56", operators=80, bytes=2 * GIB, s=0.06, flops=0.2)


def test_operators_that_a_checkpoint_calls_again() -> None:
    memory = {"seen__memory_peak_bytes": GIB, "seen__memory_total_bytes": 24 * GIB}
    job = cpu_profile(seen__flow=flow(recomputed=AGAIN), **memory)
    finding = only(RECOMPUTED, job)
    assert (finding.code, finding.where) == ("MEM009", "gpt.py:56")
    assert saved_ms(finding, job) == pytest.approx(0.2 * CPU_OPERATORS_MS, rel=0.01)
    assert "+ x = block(x)" in changes(finding)
    library = changed(job, seen__checkpointing_where="train.py:12")
    assert only(RECOMPUTED, library).where == "train.py:12"
    large = dataclasses.replace(AGAIN, bytes=12 * GIB)
    assert findings(RECOMPUTED, changed(job, seen__flow=flow(recomputed=large))) == ()
    assert findings(RECOMPUTED, changed(job, seen__flow=flow())) == ()
    unknown = changed(job, seen__memory_total_bytes=None)
    assert findings(RECOMPUTED, unknown) == ()


def test_on_a_gpu_what_is_recomputed_counts_by_the_operations() -> None:
    job = profile(seen__flow=flow(recomputed=AGAIN), seen__memory_peak_bytes=20 * GIB)
    saved = saved_ms(only(RECOMPUTED, job), job)
    assert saved == pytest.approx(0.2 * GPU_OPERATORS_MS, rel=0.05)
