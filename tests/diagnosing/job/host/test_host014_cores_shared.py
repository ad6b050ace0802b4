from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from flatout.nouns.profile import Profile
from flatout_agent.wire import CoresSeen

CHECK = "cores-shared"


def profile(**fields: Any) -> Profile:
    """A healthy one on eight cores, with this use of them."""
    base = made.cpu_profile()
    assert base.seen is not None
    cores = CoresSeen(cores=8, physical=8, machine=8, **fields)
    return dataclasses.replace(base, seen=dataclasses.replace(base.seen, cores=cores))


def test_other_programs_are_named() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    shared = profile(
        queued_s=0.3 * step_ms / 1000, others_cores=1.4, others=("blender (77): 1.4 cores",)
    )
    finding = made.only(CHECK, shared)
    assert finding.code == "HOST014"
    assert finding.title.startswith("other programs take the cores")
    assert "blender (77)" in finding.evidence
    assert "torch.set_num_threads(7)" in finding.cure.commands
    assert made.saved_ms(finding, shared) == pytest.approx(0.3 * step_ms, rel=0.01)


def test_a_quota_that_holds_back() -> None:
    step_ms = made.cpu_profile().anatomy.step_ms
    throttled = profile(throttled_s=0.4 * step_ms / 1000, queued_s=0.0, quota=2.0)
    finding = made.only(CHECK, throttled)
    assert finding.title.startswith("the CPU quota holds the process back")
    assert "torch.set_num_threads(2)" in finding.cure.commands


def test_little_unknown_or_crowded_by_its_own_threads() -> None:
    assert made.findings(CHECK, profile(queued_s=0.0001)) == ()
    assert made.findings(CHECK, profile()) == ()
    assert made.findings(CHECK, made.cpu_profile()) == ()
    alone = profile(queued_s=0.1, others_cores=0.0)
    assert made.findings(CHECK, made.changed(alone, job__threads=8, job__loaders=())) == ()
    assert (
        "Use fewer loader workers"
        in made.only(CHECK, made.changed(alone, job__threads=8)).cure.text
    )
    crowded = made.changed(profile(queued_s=0.1), job__threads=24)
    assert made.findings(CHECK, crowded) == ()
