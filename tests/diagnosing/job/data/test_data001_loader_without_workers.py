from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import WAITING
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Gap


def test_without_workers() -> None:
    changes = {"job__loaders__0__num_workers": 0, "job__cores": 16, "job__wait_share": 0.72}
    profile = made.profile(WAITING, **changes)
    finding = made.only("loader-without-workers", profile)
    assert (finding.code, finding.severity) == ("DATA001", Severity.WARNING)
    assert finding.where == "train.py:80"
    assert finding.boost == "loader-workers"
    assert "waits 260 ms of 360 ms" in finding.evidence
    assert "num_workers=0, 16 cores" in finding.evidence
    assert "num_workers=15" in made.changes(finding)
    # 15 workers need 17 ms of their 260 for a step: what remains is the step without its wait
    assert made.saved_ms(finding, profile) == pytest.approx(260, abs=0.5)


def test_without_workers_on_few_cores_loading_stays_the_longer_part() -> None:
    profile = made.profile({Kind.WAIT_DATA: 600.0}, job__loaders__0__num_workers=0, job__cores=3)
    finding = made.only("loader-without-workers", profile)
    assert made.saved_ms(finding, profile) == pytest.approx(700 - 600 / 2, abs=1)


def test_without_workers_on_a_cpu_the_work_stays() -> None:
    profile = made.cpu_profile({Kind.WAIT_DATA: 200.0}, job__loaders__0__num_workers=0)
    finding = made.only("loader-without-workers", profile)
    # 298 ms of training, and half of 200 ms in which one of two workers holds each thread up
    assert made.saved_ms(finding, profile) == pytest.approx(498 - (298 + 200 / 2), abs=1)
    few = made.changed(profile, job__cores=2, job__threads=2)
    assert made.findings("loader-without-workers", few) == ()
    idle_cores = made.changed(profile, job__threads=4)
    finding = made.only("loader-without-workers", idle_cores)
    assert made.saved_ms(finding, idle_cores) == pytest.approx(200, abs=1)
    assert "num_workers=2" in made.changes(finding)


def test_an_iterable_dataset_must_share_out_its_data() -> None:
    changes = {"job__loaders__0__num_workers": 0, "job__loaders__0__iterable": True}
    finding = made.only("loader-without-workers", made.profile(WAITING, **changes))
    assert finding.boost is None
    assert "get_worker_info" in made.changes(finding)


def test_a_trace_alone_names_the_iterator() -> None:
    gap = Gap(
        Kind.WAIT_DATA, 260.0, 1.0, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    )
    profile = made.profile(WAITING, job=None, seen=None, gaps=(gap,))
    finding = made.only("loader-without-workers", profile)
    assert finding.boost is None and finding.where is None
    several = dataclasses.replace(gap, doing="enumerate(DataLoader)#_MultiProcessingDataLoaderIter")
    assert made.findings("loader-without-workers", made.changed(profile, gaps=(several,))) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"job__loaders__0__num_workers": 4},
        {"job__loaders__0__batch_on_device": True},
        {"job__cores": 1},
        {"job__loaders": ()},
        {"job": None, "gaps": ()},
    ],
)
def test_nothing_to_say_of_workers(changes: dict[str, Any]) -> None:
    base = {"job__loaders__0__num_workers": 0}
    profile = made.profile(WAITING, **base)
    assert made.findings("loader-without-workers", made.changed(profile, **changes)) == ()


def test_no_wait_no_finding_without_workers() -> None:
    assert (
        made.findings("loader-without-workers", made.profile(job__loaders__0__num_workers=0)) == ()
    )
