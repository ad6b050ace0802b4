from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.copy.jobs import at, job
from flatout.nouns.profile import Copy, Sync


def test_outputs_copied_to_the_host() -> None:
    place = at(90, "outputs.append(logits.cpu().numpy())")
    one = Copy("DtoH", 1.0, 131e6, 19.0, pinned=False, exposed_ms=19.0, where=place)
    profile = job((one,), (Sync("aten::to", 1.0, 60.0, idle_ms=4.0, where=place),))
    finding = made.only("outputs-copied-to-host", profile)
    assert (finding.code, finding.where) == ("COPY007", "train.py:90")
    assert made.saved_ms(finding, profile) == pytest.approx(23)
    assert "SYNC001" not in made.codes(profile)
    small = dataclasses.replace(one, bytes=4.0, exposed_ms=0.01)
    changed = made.changed(profile, copies=(small,))
    assert made.findings("outputs-copied-to-host", changed) == ()
    assert "SYNC001" in made.codes(changed)
    rare = dataclasses.replace(one, calls=0.02)
    assert made.findings("outputs-copied-to-host", job((rare,))) == ()
