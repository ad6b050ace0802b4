from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import exchanging
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Collective


def test_all_reduce_exposed() -> None:
    one = Collective("all_reduce", 5.0, 25.0, 20.0, 102.2e6)
    profile = exchanging(one)
    finding = made.only("all-reduce-exposed", profile)
    assert (finding.code, finding.severity) == ("COMM001", Severity.WARNING)
    assert finding.where == "train.py:85"
    assert "20.0 ms exposed, 5.00 ms hidden; 5 messages" in finding.evidence
    assert "bf16_compress_hook" in made.changes(finding)
    # 42 ms of backward pass are not covered yet: all but the last message of 5 ms and half of that
    assert made.saved_ms(finding, profile) == pytest.approx(15 + 2.5, abs=0.1)


def test_all_reduce_longer_than_the_step_only_shrinks() -> None:
    profile = exchanging(Collective("all_reduce", 5.0, 200.0, 150.0, 102.2e6))
    finding = made.only("all-reduce-exposed", profile)
    assert 0 < made.saved_ms(finding, profile) <= 75


def test_hidden_communication_is_fine() -> None:
    assert made.findings("all-reduce-exposed", made.ddp_profile()) == ()
    assert made.findings("all-reduce-exposed", made.profile()) == ()
