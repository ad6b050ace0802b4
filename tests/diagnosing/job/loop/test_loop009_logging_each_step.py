from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import findings, only, saved_ms
from diagnosing.job.made_parts import BACKWARD
from flatout.nouns.profile import Sync
from machines.healthy import changed


def test_logging_each_step() -> None:
    job = calling("SummaryWriter.add_scalar", 0.03, calls=40)
    finding = only("logging-each-step", job)
    assert (finding.code, finding.where) == ("LOOP009", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(30 * 0.98, rel=0.01)
    assert findings("logging-each-step", calling("print", 0.0001)) == ()
    place = dataclasses.replace(BACKWARD, line=90)
    waits = changed(job, syncs=(Sync("aten::item", 1, 30.0, where=place),))
    assert findings("logging-each-step", waits) == (), "the wait for the device is told elsewhere"
