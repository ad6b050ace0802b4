from __future__ import annotations

from diagnosing.job import made
from flatout.nouns.finding import Severity


def test_too_many_workers() -> None:
    changes = {"job__cores": 8, "job__loaders__0__num_workers": 32, "seen__worker_cpu_s": 0.2}
    finding = made.only("loader-workers-too-many", made.profile(**changes))
    assert (finding.code, finding.severity, finding.gain) == ("DATA003", Severity.NOTE, None)
    assert "num_workers=3" in made.changes(finding)
    busy = made.profile(**{**changes, "seen__worker_cpu_s": 2.5})
    assert made.findings("loader-workers-too-many", busy) == ()
