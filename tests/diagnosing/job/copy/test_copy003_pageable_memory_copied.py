from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import at, job
from flatout.nouns.profile import Copy


def test_pageable_memory_of_the_script() -> None:
    place = at(90, "y = torch.cat(parts).cuda()")
    one = Copy("HtoD", 1.0, 80e6, 9.8, pinned=False, exposed_ms=9.8, where=place)
    profile = job((one,))
    finding = made.only("pageable-memory-copied", profile)
    assert (finding.code, finding.where) == ("COPY003", "train.py:90")
    assert "+ y = torch.cat(parts).pin_memory().cuda(non_blocking=True)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(9.8 - 80 / 24.8, abs=0.05)
    known = job((dataclasses.replace(one, pinned=True),))
    assert made.findings("pageable-memory-copied", known) == ()
