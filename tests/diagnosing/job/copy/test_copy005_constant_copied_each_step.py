from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import BATCH, WAITS, at, job
from flatout.nouns.profile import Copy, Sync
from flatout_agent import wire
from machines.healthy import changed


@pytest.mark.parametrize(
    ("source", "name", "change"),
    [
        ("x = (x - MEAN.to(device)) / 2", "MEAN", "+ x = (x - MEAN) / 2"),
        ("x = x + self.table.cuda()", "self.table", 'self.register_buffer("table"'),
    ],
)
def test_constant_copied_each_step(source: str, name: str, change: str) -> None:
    place = at(95, source)
    one = Copy("HtoD", 1.0, 12.0, 0.01, pinned=False, exposed_ms=0.01, where=place)
    profile = job((one,), (Sync("aten::to", 1.0, 12.0, idle_ms=3.0, where=place),))
    finding = made.only("constant-copied-each-step", profile)
    assert (finding.code, finding.where) == ("COPY005", "train.py:95")
    assert finding.title.startswith(name)
    assert change in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(3.01)


def test_batches_are_no_constants() -> None:
    profile = job((BATCH,), (dataclasses.replace(WAITS, idle_ms=4.0),))
    assert made.findings("constant-copied-each-step", profile) == ()
    once = Copy("HtoD", 0.1, 12.0, 0.01, pinned=False, exposed_ms=4.0, where=at(9, "A.to(0)"))
    assert made.findings("constant-copied-each-step", job((once,))) == ()


def test_what_was_seen_to_be_constant() -> None:
    place = at(95, "scores = scores + positions.to(device)")
    one = Copy("HtoD", 1.0, 4e6, 2.0, pinned=False, exposed_ms=2.0, where=place)
    assert made.findings("constant-copied-each-step", job((one,))) == ()
    constant = wire.ConstantSeen(str(place), (str(place),), ("aten._to_copy",), compared=False)
    flow = wire.FlowSeen(steps=2, operators=9, operators_s=0.01, constants=(constant,))
    profile = changed(job((one,)), seen__flow=flow)
    finding = made.only("constant-copied-each-step", profile)
    assert finding.title.startswith("positions is copied")
    assert made.findings("constant-built-each-step", profile) == ()
