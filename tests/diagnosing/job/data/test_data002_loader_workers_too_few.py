from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import few
from flatout.nouns.profile import Profile


def test_too_few_workers() -> None:
    profile = few(2, busy_ms=310.0)
    finding = made.only("loader-workers-too-few", profile)
    assert (finding.code, finding.where) == ("DATA002", "train.py:80")
    assert "2 workers, computing 97% of their time; 32 cores" in finding.evidence
    assert "num_workers=4" in made.changes(finding)  # 310 / 99.6 ms, a quarter to spare
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)


def test_too_few_workers_where_their_use_is_not_known() -> None:
    assert made.only("loader-workers-too-few", few(2, busy_ms=None)).gain is not None


@pytest.mark.parametrize(
    "profile",
    [
        few(2, busy_ms=60.0),  # they wait for the storage
        few(16, busy_ms=2000.0, job__cores=16),  # no core is left
        made.profile(job__loaders__0__num_workers=2, seen__worker_cpu_s=0.19),  # no wait
    ],
)
def test_not_too_few(profile: Profile) -> None:
    assert made.findings("loader-workers-too-few", profile) == ()
