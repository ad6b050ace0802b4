from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout_agent.wire import CallSeen


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
