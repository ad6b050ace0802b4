from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.host.jobs import NEXT, small_model
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Gap


def test_launch_bound() -> None:
    profile = small_model()
    finding = made.only("launch-bound", profile)
    assert (finding.code, finding.severity) == ("HOST001", Severity.WARNING)
    assert finding.where == "train.py:84"
    assert finding.boost == "cuda-graphs"
    assert "one launch every 20 us (this machine can do 6.1 us)" in finding.evidence
    launches = sum(part.launches for part in profile.anatomy.parts)
    assert made.saved_ms(finding, profile) == pytest.approx(0.7 * (13.6 - launches / 1000))


def test_launch_bound_where_the_boosts_are_on_already() -> None:
    finding = made.only("launch-bound", small_model(job__models__0__compiled=True))
    assert finding.boost is None


def test_long_kernels_are_not_launch_bound() -> None:
    profile = made.profile({Kind.WAIT_HOST: 30.0}, gaps=())
    few = made.changed(profile, anatomy__parts__all__launches=2.0)
    assert made.findings("launch-bound", few) == ()
    assert made.findings("launch-bound", made.profile()) == ()


def test_pauses_are_no_launching() -> None:
    gaps = (Gap(Kind.WAIT_HOST, 13.0, 1.0, "aten::mm", NEXT),)
    assert made.findings("launch-bound", made.changed(small_model(), gaps=gaps)) == ()
