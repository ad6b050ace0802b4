from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind


def test_workers_started_each_epoch() -> None:
    changes = {
        "job__loaders__0__persistent_workers": False,
        "job__loaders__0__batches": 40,
        "seen__epochs": 3,
        "seen__loader_start_s": 3.06,
    }
    profile = made.profile(**changes)
    finding = made.only("workers-started-each-epoch", profile)
    assert finding.code == "DATA004"
    assert "persistent_workers=True" in made.changes(finding)
    # 2 s without the first batch's own work: 50 ms for each of 40 steps of 100 ms
    assert finding.gain is not None
    assert finding.gain.ratio == pytest.approx(1.5, rel=0.01)
    waiting = made.profile({Kind.WAIT_DATA: 50.0}, **{**changes, "seen__worker_cpu_s": 0.4})
    later = made.changed(waiting, seen__loader_start_s=2.4)  # all of the wait is the start
    assert made.findings("storage-slow", later) == ()
    assert made.findings("loader-workers-too-few", later) == ()
    for one_less in (
        {"job__loaders__0__persistent_workers": True},
        {"seen__epochs": 1},
        {"seen__loader_start_s": 1.1},
        {"seen__loader_start_s": None},
        {"job__loaders__0__batches": None},
        {"job__loaders__0__batches": 5000},
    ):
        silent = made.profile(**{**changes, **one_less})
        assert made.findings("workers-started-each-epoch", silent) == (), one_less
