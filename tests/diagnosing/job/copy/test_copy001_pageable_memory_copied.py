from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import BATCH, at, job
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Copy, Profile

CHECK = "pageable-memory-copied"
UNPINNED = {"job__loaders__0__pin_memory": False}


def test_batches_not_pinned() -> None:
    profile = job((BATCH,), **UNPINNED)
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.severity) == ("COPY001", Severity.WARNING)
    assert finding.title == "batches of 147 MiB are copied from memory that is not pinned"
    assert (finding.where, finding.boost) == ("train.py:81", "loader-pin-memory")
    assert "147 MiB a step from pageable memory" in finding.evidence
    assert "pinned 24.8 GB/s" in finding.evidence
    assert "+ images = images.to(device, non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(18.8 - 154.1 / 24.8, abs=0.05)
    assert "COPY001" in made.codes(profile)


def test_batches_not_pinned_where_nothing_was_measured() -> None:
    profile = job((BATCH,), **UNPINNED, ceilings=())
    assert made.saved_ms(made.only(CHECK, profile), profile) == pytest.approx(9.4)


def test_where_the_loader_pins_the_line_is_to_blame() -> None:
    finding = made.only(CHECK, job((BATCH,)))
    assert finding.title == "147 MiB a step are copied from memory that is not pinned"
    assert finding.boost is None


@pytest.mark.parametrize(
    "profile",
    [
        job((dataclasses.replace(BATCH, pinned=None),), **UNPINNED),
        job((dataclasses.replace(BATCH, exposed_ms=0.4),), **UNPINNED),
        job((dataclasses.replace(BATCH, bytes=2e4),), **UNPINNED),
        job((), **UNPINNED),
    ],
)
def test_batches_that_are_pinned_or_unknown(profile: Profile) -> None:
    assert made.findings(CHECK, profile) == ()


def test_pageable_memory_of_the_script() -> None:
    place = at(90, "y = torch.cat(parts).cuda()")
    one = Copy("HtoD", 1.0, 80e6, 9.8, pinned=False, exposed_ms=9.8, where=place)
    profile = job((one,))
    finding = made.only(CHECK, profile)
    assert (finding.code, finding.where) == ("COPY001", "train.py:90")
    assert "+ y = torch.cat(parts).pin_memory().cuda(non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(9.8 - 80 / 24.8, abs=0.05)
    known = job((dataclasses.replace(one, pinned=True),))
    assert made.findings(CHECK, known) == ()
    table = dataclasses.replace(one, where=at(90, "rows = self.table.to(device)"))
    both = made.findings(CHECK, job((BATCH, table), **UNPINNED))
    assert {finding.where for finding in both} == {"train.py:81", "train.py:90"}
