from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import exchanging, recorded
from flatout.nouns.profile import Collective

BUFFERS = Collective("broadcast", 2.0, 5.0, 4.0, 2e5, ranks=8)


def test_buffers_broadcast_each_step() -> None:
    profile = exchanging(BUFFERS)
    finding = made.only("buffers-broadcast-each-step", profile)
    assert finding.code == "COMM010"
    assert made.saved_ms(finding, profile) == pytest.approx(4.0)
    assert "broadcast_buffers=False" in made.changes(finding)


def test_where_it_is_not_these_or_costs_little() -> None:
    for other in (
        dataclasses.replace(BUFFERS, calls=0.1),
        dataclasses.replace(BUFFERS, exposed_ms=0.1),
        dataclasses.replace(BUFFERS, name="all_reduce"),
    ):
        assert made.findings("buffers-broadcast-each-step", exchanging(other)) == ()
    by_hand = exchanging(BUFFERS, job__models__0__wrapped=None)
    assert made.findings("buffers-broadcast-each-step", by_hand) == ()
    assert made.findings("buffers-broadcast-each-step", recorded("a100_nccl")) == ()
