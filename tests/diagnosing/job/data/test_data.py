"""DATA: each fault of the input is found, with its figures, and a healthy job has none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Gap, Operator, Place, Profile
from flatout_agent.wire import CallSeen

WAITING = {Kind.WAIT_DATA: 260.0}


def few(workers: int, busy_ms: float | None, **changes: Any) -> Profile:
    """A job that waits 60 of 160 ms for `workers` workers, busy for `busy_ms` together."""
    profile = made.profile({Kind.WAIT_DATA: 60.0}, job__loaders__0__num_workers=workers)
    seconds = None if busy_ms is None else busy_ms / 1000
    return made.changed(profile, seen__worker_cpu_s=seconds, **changes)


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


def test_too_many_workers() -> None:
    changes = {"job__cores": 8, "job__loaders__0__num_workers": 32, "seen__worker_cpu_s": 0.2}
    finding = made.only("loader-workers-too-many", made.profile(**changes))
    assert (finding.code, finding.severity, finding.gain) == ("DATA003", Severity.NOTE, None)
    assert "num_workers=3" in made.changes(finding)
    busy = made.profile(**{**changes, "seen__worker_cpu_s": 2.5})
    assert made.findings("loader-workers-too-many", busy) == ()


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


def opened(calls: float, seconds: float, detail: str) -> tuple[CallSeen, ...]:
    return (CallSeen("open", calls, seconds, "data.py:31", detail),)


def test_files_opened_anew() -> None:
    calls = opened(256.0, 0.05, "/data/all.h5")
    profile = made.profile(
        {Kind.WAIT_DATA: 90.0}, job__loaders__0__num_workers=0, seen__calls=calls
    )
    finding = made.only("files-opened-anew", profile)
    assert (finding.code, finding.where) == ("DATA005", "data.py:31")
    assert "256.0 calls and 50.0 ms a step, 1 distinct file" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(50, abs=0.5)


def test_files_opened_anew_in_workers_share_their_time() -> None:
    calls = opened(256.0, 0.4, "/data/all.h5 in a worker")
    profile = made.profile(
        {Kind.WAIT_DATA: 90.0}, job__loaders__0__num_workers=8, seen__calls=calls
    )
    finding = made.only("files-opened-anew", profile)
    assert "in loader workers" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(50, abs=0.5)


@pytest.mark.parametrize(
    "calls",
    [
        (CallSeen("open (another file each time)", 256.0, 0.05, "data.py:31"),),
        opened(256.0, 0.05, "64 files, /data/1.jpg in a worker"),  # no more of them are told
        opened(256.0, 0.05, "200 files, /data/1.jpg"),  # a small data set, seen twice
        opened(1.0, 0.05, "/data/all.h5"),
        opened(256.0, 0.0005, "/data/all.h5"),
        (CallSeen("open", 256.0, 0.05, None, "/data/all.h5"),),
    ],
)
def test_opening_that_is_no_fault(calls: tuple[CallSeen, ...]) -> None:
    changes = {"job__loaders__0__num_workers": 0, "seen__calls": calls}
    assert made.findings("files-opened-anew", made.profile({Kind.WAIT_DATA: 90.0}, **changes)) == ()


def test_storage_slow() -> None:
    profile = few(8, busy_ms=200.0)
    finding = made.only("storage-slow", profile)
    assert finding.code == "DATA006"
    assert "84% of their time" in finding.title
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("storage-slow", few(8, busy_ms=1200.0)) == ()
    assert made.findings("storage-slow", few(8, busy_ms=None)) == ()
    assert made.findings("storage-slow", made.profile(seen__worker_cpu_s=0.1)) == ()


def test_storage_slow_hides_that_there_are_many_workers() -> None:
    codes = made.codes(few(32, busy_ms=200.0, job__cores=8))
    assert "DATA006" in codes and "DATA003" not in codes


def test_decoding_binds() -> None:
    profile = few(15, busy_ms=2350.0, job__cores=16)
    finding = made.only("decoding-binds", profile)
    assert finding.code == "DATA007"
    assert "a sample costs 9.18 ms, decoding a picture 4.17 ms" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(60, abs=1)
    assert made.findings("decoding-binds", few(8, busy_ms=1200.0, job__cores=32)) == ()
    assert made.findings("decoding-binds", few(15, busy_ms=300.0, job__cores=16)) == ()


COLLATE = Place("data.py", 52, "pad_collate", "batch[i, : len(x)] = x")


def test_collate_in_the_main_process() -> None:
    operators = (Operator("aten::copy_", Kind.CONVERSION, 256.0, 24.0, where=COLLATE),)
    profile = made.profile({Kind.WAIT_DATA: 30.0}, operators=operators, gaps=())
    finding = made.only("collate-in-main-process", profile)
    assert (finding.code, finding.where) == ("DATA008", "data.py:52")
    assert "collate_fn=pad_collate" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(24, abs=0.5)


def test_collate_is_told_by_the_loader_that_has_no_workers() -> None:
    operators = (Operator("aten::copy_", Kind.CONVERSION, 256.0, 24.0, where=COLLATE),)
    changes = {"operators": operators, "job__loaders__0__num_workers": 0}
    codes = made.codes(made.profile({Kind.WAIT_DATA: 30.0}, **changes))
    assert "DATA001" in codes and "DATA008" not in codes


def test_work_repeated_for_each_sample() -> None:
    line = Place("data.py", 31, "Pictures.__getitem__", "return (pixels - MEAN) / STD, label")
    operators = (
        Operator("aten::div", Kind.ELEMENTWISE, 512.0, 22.0, where=line),
        Operator("aten::sub", Kind.ELEMENTWISE, 256.0, 10.0, where=line),
    )
    profile = made.profile(
        WAITING, operators=operators, job__loaders__0__num_workers=0, job__cores=16
    )
    finding = made.only("work-repeated-for-each-sample", profile)
    assert (finding.code, finding.where) == ("DATA009", "data.py:31")
    assert "32.0 ms a step in __getitem__ for 256 samples" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(32, abs=0.5)
    drawn = (Operator("aten::randn", Kind.OTHER, 256.0, 32.0, where=line),)
    assert (
        made.findings("work-repeated-for-each-sample", made.changed(profile, operators=drawn)) == ()
    )
    once = (Operator("aten::div", Kind.ELEMENTWISE, 2.0, 32.0, where=line),)
    assert (
        made.findings("work-repeated-for-each-sample", made.changed(profile, operators=once)) == ()
    )
