"""HOST: a device, or cores, that wait for the host are found, with figures."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind, Part
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Gap, Place, Profile
from flatout_agent.wire import CallSeen

NEXT = Place("train.py", 92, "train_epoch", "loss.backward()")


def small_model(**changes: Any) -> Profile:
    """A step of 20 ms in which 900 kernels of 7 us take 6 ms, and the rest is launching."""
    parts = {
        Kind.TENSOR_CORES: 3.0,
        Kind.ELEMENTWISE: 2.0,
        Kind.NORMALISATION: 1.0,
        Kind.REDUCTION: 0.0,
        Kind.OPTIMIZER: 0.3,
        Kind.CONVERSION: 0.0,
        Kind.OTHER: 0.0,
        Kind.COPY: 0.0,
        Kind.WAIT_DATA: 0.0,
        Kind.WAIT_SYNC: 0.0,
        Kind.WAIT_OTHER: 0.0,
        Kind.WAIT_HOST: 13.7,
    }
    gaps = (Gap(Kind.WAIT_HOST, 13.7, 800.0, "aten::mm", NEXT),)
    small = made.changed(
        made.profile(parts),
        gaps=gaps,
        anatomy__parts__0__launches=0.0,
        anatomy__parts__1__launches=300.0,
        anatomy__parts__2__launches=600.0,
        job__models__0__compiled=False,
    )
    changed: Profile = made.changed(small, **changes)
    return changed


def test_launch_bound() -> None:
    profile = small_model()
    finding = made.only("launch-bound", profile)
    assert (finding.code, finding.severity) == ("HOST001", Severity.WARNING)
    assert finding.where == "train.py:84"
    assert finding.boost == "cuda-graphs"
    assert "one launch every 20 us (possible here: 6.1 us)" in finding.evidence
    launches = sum(part.launches for part in profile.anatomy.parts)
    assert made.saved_ms(finding, profile) == pytest.approx(0.7 * (13.6 - launches / 1000))


def test_launch_bound_where_the_boosts_are_on_already() -> None:
    finding = made.only("launch-bound", small_model(job__models__0__compiled=True))
    assert finding.boost is None


def test_long_kernels_are_not_launch_bound() -> None:
    profile = made.profile({Kind.WAIT_HOST: 30.0}, gaps=())
    few = made.changed(profile, anatomy__parts__all__launches=2.0)
    assert made.findings("launch-bound", few) == ()
    assert made.findings("launch-bound", made.profile()) == ()


def test_pauses_are_no_launching() -> None:
    gaps = (Gap(Kind.WAIT_HOST, 13.0, 1.0, "aten::mm", NEXT),)
    assert made.findings("launch-bound", made.changed(small_model(), gaps=gaps)) == ()


def test_batch_small() -> None:
    profile = small_model(seen__memory_peak_bytes=6 * made.GIB, job__loaders__0__batch_size=16)
    finding = made.only("batch-small", profile)
    assert (finding.code, finding.severity, finding.boost) == (
        "HOST002",
        Severity.NOTE,
        "batch-size",
    )
    assert "batch_size=32" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(10.0)  # 32 samples in the same 20 ms
    full = made.changed(profile, seen__memory_peak_bytes=70 * made.GIB)
    assert made.findings("batch-small", full) == ()
    unknown = made.changed(profile, seen__memory_total_bytes=None)
    assert made.findings("batch-small", unknown) == ()


def test_garbage_collection_on_a_device_counts_where_it_waits() -> None:
    profile = made.profile({Kind.WAIT_HOST: 20.0}, seen__gc_s=0.012, seen__gc_runs=1.0)
    finding = made.only("garbage-collected-in-steps", profile)
    assert (finding.code, finding.boost) == ("HOST003", "gc-pause")
    assert "1.00 collections and 12.0 ms a step" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(9.6)
    hidden = made.profile({Kind.WAIT_HOST: 0.1, Kind.WAIT_OTHER: 0.1}, seen__gc_s=0.012)
    assert made.findings("garbage-collected-in-steps", hidden) == ()


def test_garbage_collection_on_a_cpu() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 50.0}, seen__gc_s=0.040, seen__gc_runs=2.0)
    finding = made.only("garbage-collected-in-steps", profile)
    assert made.saved_ms(finding, profile) == pytest.approx(32)
    asked = (CallSeen("gc.collect", 1.0, 0.04, "train.py:97"),)
    told = made.only("garbage-collected-in-steps", made.changed(profile, seen__calls=asked))
    assert (told.where, told.boost) == ("train.py:97", None)


def test_threads_oversubscribed() -> None:
    profile = made.cpu_profile(job__threads=32)
    finding = made.only("threads-oversubscribed", profile)
    assert (finding.code, finding.boost) == ("HOST004", "cpu-threads")
    assert "32 threads and 0.7 busy loader workers; 8 cores" in finding.evidence
    assert "torch.set_num_threads(7)" in made.changes(finding)
    # 288 ms in operators, a quarter of what 24.7 of 32.7 threads have no core for
    assert made.saved_ms(finding, profile) == pytest.approx(288 * 0.25 * (1 - 8 / 32.67), abs=1)
    for silent in (
        made.cpu_profile(job__threads=9),
        made.cpu_profile(job__threads=1, job__cores=1),
        made.profile(job__threads=128),
    ):
        assert made.findings("threads-oversubscribed", silent) == ()


def test_two_processes_share_the_cores() -> None:
    profile = made.cpu_profile(job__threads=8, job__world_size=2)
    assert "on 4 cores" in made.only("threads-oversubscribed", profile).title


def test_threads_too_few() -> None:
    profile = made.cpu_profile(job__threads=1, seen__main_cpu_s=0.33, job__cores=16)
    finding = made.only("threads-too-few", profile)
    assert finding.code == "HOST005"
    assert "torch.set_num_threads(8)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(7 / 8 * (0.7 * 205 + 0.35 * 80), abs=1)
    for changes in (
        {"job__threads": 8},
        {"seen__main_cpu_s": 3.6},
        {"seen__main_cpu_s": None, "anatomy__cores_busy": None},
        {"anatomy__parts__all__launches": 0.0},
    ):
        assert made.findings("threads-too-few", made.changed(profile, **changes)) == ()


def test_optimizer_loops_over_tensors() -> None:
    parts = {Kind.OPTIMIZER: 30.0}
    rmsprop = {
        "job__optimizers__0__kind": "RMSprop",
        "job__optimizers__0__fused": None,
        "job__optimizers__0__tensors": 200,
    }
    profile = with_launches(made.cpu_profile(parts, **rmsprop), Kind.OPTIMIZER, 1600.0)
    finding = made.only("optimizer-loops-over-tensors", profile)
    assert (finding.code, finding.where) == ("HOST006", "train.py:86")
    assert finding.boost == "fused-optimizer"
    assert "torch.optim.RMSprop(model.parameters(), ..., foreach=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(1600 * 0.005 * 199 / 200)
    own = made.changed(profile, job__optimizers__0__from_torch=False)
    assert "_foreach_add_" in made.changes(made.only("optimizer-loops-over-tensors", own))
    for changes in (
        {"job__optimizers__0__foreach": True},
        {"job__optimizers__0__kind": "AdamW"},
        {"job__optimizers__0__tensors": 4},
    ):
        silent = made.changed(profile, **changes)
        assert made.findings("optimizer-loops-over-tensors", silent) == ()


def with_launches(profile: Profile, kind: Kind, launches: float) -> Profile:
    parts = tuple(
        Part(kind, part.ms, launches) if part.kind is kind else part
        for part in profile.anatomy.parts
    )
    changed: Profile = made.changed(profile, anatomy__parts=parts)
    return changed


def test_main_thread_busy() -> None:
    gaps = (
        Gap(Kind.WAIT_HOST, 9.0, 1.0, "aten::mul", NEXT),
        Gap(Kind.WAIT_HOST, 4.0, 60.0, "aten::copy_"),
    )
    profile = made.profile({Kind.WAIT_HOST: 13.0}, gaps=gaps)
    finding = made.only("main-thread-busy", profile)
    assert (finding.code, finding.where) == ("HOST007", "train.py:92")
    assert "the longest before train.py:92" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(8.9)  # 0.1 ms is garbage collection
    printing = made.changed(profile, seen__calls=(CallSeen("print", 1.0, 0.008, "train.py:89"),))
    named = made.only("main-thread-busy", printing)
    assert named.where == "train.py:89"
    assert "print takes 8.00 ms" in named.evidence


def test_short_gaps_and_collections_are_no_other_work() -> None:
    gaps = (Gap(Kind.WAIT_HOST, 13.0, 60.0, "aten::mul", NEXT),)
    assert made.findings("main-thread-busy", made.profile({Kind.WAIT_HOST: 13.0}, gaps=gaps)) == ()
    long = (Gap(Kind.WAIT_HOST, 9.0, 1.0, "aten::mul", NEXT),)
    without_steps = made.profile({Kind.WAIT_HOST: 13.0}, gaps=long, trace_steps=False)
    assert made.findings("main-thread-busy", without_steps) == ()
    collected = made.profile({Kind.WAIT_HOST: 13.0}, gaps=long, seen__gc_s=0.0088)
    assert made.findings("main-thread-busy", collected) == ()


def test_python_between_operators() -> None:
    profile = made.cpu_profile({Kind.PYTHON: 120.0}, seen__main_cpu_s=0.5)
    slow = made.changed(profile, job__models__0__compiled=False)
    finding = made.only("python-between-operators", slow)
    assert (finding.code, finding.boost) == ("HOST008", "compile")
    assert "1.2 cores busy of 8" in finding.evidence
    assert made.saved_ms(finding, slow) == pytest.approx(60, abs=0.5)
    assert made.findings("python-between-operators", made.cpu_profile()) == ()
    collected = made.changed(slow, seen__gc_s=0.118)
    assert made.findings("python-between-operators", collected) == ()
