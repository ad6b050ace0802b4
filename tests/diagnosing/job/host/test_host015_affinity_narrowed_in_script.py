from __future__ import annotations

import dataclasses
from typing import Any

from diagnosing.job import made
from flatout.nouns.profile import Profile
from flatout_agent.wire import CoresSeen

CHECK = "affinity-narrowed-in-script"


def profile(**fields: Any) -> Profile:
    """Bound to two of eight cores, both of them busy."""
    base = made.changed(made.cpu_profile(), job__threads=2, job__cores=2)
    assert base.seen is not None
    bound = {"cores": 2, "physical": 2, "machine": 8, "affinity_where": "train.py:4"}
    seen = dataclasses.replace(
        base.seen, cores=CoresSeen(**{**bound, **fields}), main_cpu_s=2 * base.seen.step_s
    )
    return dataclasses.replace(base, seen=seen)


def test_the_line_that_binds_the_process() -> None:
    finding = made.only(CHECK, profile())
    assert (finding.code, finding.where) == ("HOST015", "train.py:4")
    assert "2 cores of 8" in finding.title


def test_not_by_the_script_or_not_what_binds() -> None:
    assert made.findings(CHECK, profile(affinity_where=None)) == ()
    assert made.findings(CHECK, profile(machine=2)) == ()
    assert made.findings(CHECK, profile(quota=1.5)) == ()
