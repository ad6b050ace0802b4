from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import BATCH, job
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Profile

UNPINNED = {"job__loaders__0__pin_memory": False}


def test_batches_not_pinned() -> None:
    profile = job((BATCH,), **UNPINNED)
    finding = made.only("batches-not-pinned", profile)
    assert (finding.code, finding.severity) == ("COPY001", Severity.WARNING)
    assert (finding.where, finding.boost) == ("train.py:81", "loader-pin-memory")
    assert "147 MiB a step from pageable memory" in finding.evidence
    assert "pinned 24.8 GB/s" in finding.evidence
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(18.8 - 154.1 / 24.8, abs=0.05)


def test_batches_not_pinned_where_nothing_was_measured() -> None:
    profile = job((BATCH,), **UNPINNED, ceilings=())
    assert made.saved_ms(made.only("batches-not-pinned", profile), profile) == pytest.approx(9.4)


@pytest.mark.parametrize(
    "profile",
    [
        job((BATCH,)),  # the loader pins: another check's
        job((dataclasses.replace(BATCH, pinned=None),), **UNPINNED),
        job((dataclasses.replace(BATCH, exposed_ms=0.4),), **UNPINNED),
        job((dataclasses.replace(BATCH, bytes=2e4),), **UNPINNED),
        job((), **UNPINNED),
    ],
)
def test_batches_that_are_pinned_or_unknown(profile: Profile) -> None:
    assert made.findings("batches-not-pinned", profile) == ()


def test_pageable_batches_are_told_once() -> None:
    codes = made.codes(job((BATCH,), **UNPINNED))
    assert "COPY001" in codes and "COPY003" not in codes
