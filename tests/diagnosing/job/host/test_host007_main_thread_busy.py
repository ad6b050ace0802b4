from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.host.jobs import NEXT
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap
from flatout_agent.wire import CallSeen


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
