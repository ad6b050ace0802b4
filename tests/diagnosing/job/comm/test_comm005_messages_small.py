from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import exchanging
from flatout.nouns.profile import Collective


def test_messages_small() -> None:
    one = Collective("all_reduce", 161.0, 6.4, 6.0, 40e6)
    profile = exchanging(one)
    finding = made.only("messages-small", profile)
    assert finding.code == "COMM005"
    assert "161 small messages" in finding.title
    assert made.saved_ms(finding, profile) == pytest.approx(6.0 * (1 - 40e6 / 2**20 / 25 / 161))
    unknown = exchanging(dataclasses.replace(one, bytes=None))
    assert made.only("messages-small", unknown).gain is not None
    for silent in (
        dataclasses.replace(one, calls=5.0),
        dataclasses.replace(one, exposed_ms=0.5),
        dataclasses.replace(one, bytes=None, ms=64.0),
    ):
        assert made.findings("messages-small", exchanging(silent)) == ()
