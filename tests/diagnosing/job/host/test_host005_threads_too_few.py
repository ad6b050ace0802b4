from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from flatout_agent.wire import CoresSeen


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


def test_cores_without_hyper_threads_are_counted_and_the_line_is_named() -> None:
    """Two cores with one thread each: the half of the cores would be one."""
    slow = made.cpu_profile(job__threads=1, job__cores=2)
    assert slow.seen is not None
    cores = CoresSeen(cores=2, physical=2, machine=2, threads_where="train.py:3")
    seen = dataclasses.replace(slow.seen, main_cpu_s=slow.seen.step_s, cores=cores)
    finding = made.only("threads-too-few", dataclasses.replace(slow, seen=seen))
    assert finding.where == "train.py:3"
    assert "set at train.py:3" in finding.evidence
    assert "torch.set_num_threads(2)" in made.changes(finding)
    hyper = dataclasses.replace(seen, cores=dataclasses.replace(cores, physical=1))
    assert made.findings("threads-too-few", dataclasses.replace(slow, seen=hyper)) == ()
