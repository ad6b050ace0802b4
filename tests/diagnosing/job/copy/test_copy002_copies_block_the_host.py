from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import KWARG, PINNED, PLAIN, WAITS, job


def test_copies_block_the_host() -> None:
    profile = job((PINNED,), (WAITS,))
    finding = made.only("copies-block-the-host", profile)
    assert (finding.code, finding.where) == ("COPY002", "train.py:81")
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(7.7)
    assert made.findings("copies-hold-up-computing", profile) == ()


def test_overlapped_copies_are_fine() -> None:
    hidden = dataclasses.replace(PINNED, exposed_ms=0.2)
    for place in (PLAIN, KWARG):
        profile = job((dataclasses.replace(hidden, where=place),))
        assert made.findings("copies-block-the-host", profile) == ()
        assert made.findings("copies-hold-up-computing", profile) == ()
