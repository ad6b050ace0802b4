from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import KWARG, PINNED, job


def test_copies_hold_up_computing() -> None:
    profile = job((dataclasses.replace(PINNED, where=KWARG),))
    finding = made.only("copies-hold-up-computing", profile)
    assert finding.code == "COPY008"
    assert made.saved_ms(finding, profile) == pytest.approx(6.2)
    assert made.findings("copies-block-the-host", profile) == ()
