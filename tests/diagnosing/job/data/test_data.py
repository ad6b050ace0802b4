"""DATA: waiting for data is found, with its cause and cure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job import made
from diagnosing.job.host import sampled
from diagnosing.job.telling import JobTold, each_of, told
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.host_time import HostKind, HostLine, HostTime
from flatout.nouns.place import Place
from flatout.nouns.profile import Gap, Operator, Profile

WAITING = {Kind.WAIT_DATA: 260.0}


def few(workers: int, busy_ms: float | None, **changes: Any) -> Profile:
    """A job that waits 60 of 160 ms for `workers` workers, busy for `busy_ms` together."""
    profile = made.profile({Kind.WAIT_DATA: 60.0}, job__loaders__0__num_workers=workers)
    seconds = None if busy_ms is None else busy_ms / 1000
    return made.changed(profile, seen__worker_cpu_s=seconds, **changes)


NO_WORKERS, SLOW = "DATA001", "DATA002"
STARTED = "DATA004"
REPEATED, PREPARED = "DATA009", "DATA010"
PADDED, SINGLY = "DATA011", "DATA013"
NONE = {"job__loaders__0__num_workers": 0}


def test_too_few_workers_where_their_use_is_not_known() -> None:
    assert made.only(SLOW, few(2, busy_ms=None)).gain is not None


STARTING = {
    "job__loaders__0__persistent_workers": False,
    "job__loaders__0__batches": 40,
    "seen__epochs": 3,
    "seen__loader_start_s": 3.06,
}


def test_workers_started_each_epoch() -> None:
    finding = made.only(STARTED, made.profile(**STARTING))
    assert finding.code == "DATA004"
    assert "persistent_workers=True" in made.changes(finding)
    # 2 s without the first batch's own work: 50 ms for each of 40 steps of 100 ms
    assert finding.gain is not None
    assert finding.gain.ratio == pytest.approx(1.5, rel=0.01)
    waiting = made.profile({Kind.WAIT_DATA: 50.0}, **STARTING, seen__worker_cpu_s=0.4)
    later = made.changed(waiting, seen__loader_start_s=2.4)  # all of the wait is the start
    assert made.findings(SLOW, later) == ()
    assert made.findings(SLOW, later) == ()


@pytest.mark.parametrize(("idle_share", "count"), [(0.6, 1), (0.05, 0)])
def test_workers_without_a_core_wait_for_no_storage(idle_share: float, count: int) -> None:
    profile = few(8, busy_ms=200.0)
    step_ms = profile.anatomy.step_ms
    host = HostTime(10, step_ms, (), worker_idle_ms=idle_share * 8 * step_ms, idle_known=True)
    found = made.findings(SLOW, dataclasses.replace(profile, host=host))
    assert len(found) == count


def test_work_repeated_for_each_sample() -> None:
    line = Place("data.py", 31, "Pictures.__getitem__", "return (pixels - MEAN) / STD, label")
    operators = (
        Operator("aten::div", Kind.ELEMENTWISE, 512.0, 22.0, where=line),
        Operator("aten::sub", Kind.ELEMENTWISE, 256.0, 10.0, where=line),
    )
    profile = made.profile(
        WAITING, operators=operators, job__loaders__0__num_workers=0, job__cores=16
    )
    finding = made.only(REPEATED, profile)
    assert (finding.code, finding.where) == ("DATA009", "data.py:31")
    assert "32.0 ms a step in __getitem__ for 256 samples" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(32, abs=0.5)
    drawn = (Operator("aten::randn", Kind.OTHER, 256.0, 32.0, where=line),)
    assert made.findings(REPEATED, made.changed(profile, operators=drawn)) == ()
    once = (Operator("aten::div", Kind.ELEMENTWISE, 2.0, 32.0, where=line),)
    assert made.findings(REPEATED, made.changed(profile, operators=once)) == ()


def prepared(share: float, **fields: object) -> Profile:
    """The data set takes this share of the step, in a job without workers."""
    step_ms = made.cpu_profile().anatomy.step_ms
    line = sampled.line(
        12, HostKind.LIBRARY, share * step_ms, function="Pictures.__getitem__", package="PIL",
        callee="image.convert('RGB')", loading=True, **fields,
    )  # fmt: skip
    return made.changed(sampled.profile(line), job__loaders__0__num_workers=0)


def padded(share: float, **changes: Any) -> Profile:
    facts = {"job__models__0__padded": share, "job__models__0__compiled": False}
    return made.cpu_profile(**facts, **changes)


def test_inputs_that_are_mostly_padding() -> None:
    job = padded(0.6)
    finding = made.only(PADDED, job)
    assert (finding.code, finding.boost) == ("DATA011", "trim-padding")
    assert finding.where == (job.seen.loader_where if job.seen is not None else None)
    assert "60% of the model's inputs" in finding.title
    spent_ms = sum(row.host_ms for row in job.operators if row.kind is not Kind.OPTIMIZER)
    assert made.saved_ms(finding, job) == pytest.approx(0.6 * spent_ms, rel=0.01)


def rows(**changes: object) -> Profile:
    """A job that waits 260 of 360 ms for rows that are in memory."""
    return made.profile(
        WAITING,
        **{
            "job__loaders__0__num_workers": 0,
            "job__loaders__0__read_singly": "",
            "job__loaders__0__batch_size": 512,
            "job__wait_share": 0.72,
            **changes,
        },
    )


def test_it_stands_in_place_of_workers() -> None:
    codes = made.codes(rows(job__cores=16))
    assert "DATA013" in codes
    assert "DATA001" not in codes


@pytest.mark.parametrize(
    ("workers", "busy_ms", "cores", "title"),
    [
        (2, 60.0, 16, "wait for the storage"),
        (15, 300.0, 16, "wait for the storage"),
        (8, 1200.0, 32, "8 loader workers are too few"),
        (8, None, 32, "8 loader workers are too few"),
        (16, 2000.0, 16, "preparing samples binds"),
    ],
)
def test_why_workers_are_too_slow(
    workers: int, busy_ms: float | None, cores: int, title: str
) -> None:
    assert title in made.only(SLOW, few(workers, busy_ms, job__cores=cores)).title


ITERATOR = Gap(
    Kind.WAIT_DATA, 260.0, 1.0, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
)


def recorded(gap: Gap) -> Profile:
    """A trace alone, with this gap."""
    return made.profile(WAITING, job=None, seen=None, gaps=(gap,))


SILENT = [
    *(
        (NO_WORKERS, made.changed(made.profile(WAITING, **NONE), **changes))
        for changes in (
            {"job__loaders__0__num_workers": 4},
            {"job__cores": 1},
            {"job__loaders": ()},
            {"job": None, "gaps": ()},
        )
    ),
    (NO_WORKERS, made.profile(**NONE)),  # no wait
    (SLOW, made.profile(job__loaders__0__num_workers=2, seen__worker_cpu_s=0.19)),  # no wait
    *(
        (STARTED, made.profile(**{**STARTING, **one_less}))
        for one_less in (
            {"job__loaders__0__persistent_workers": True},
            {"seen__epochs": 1},
            {"seen__loader_start_s": 1.1},
            {"seen__loader_start_s": None},
            {"job__loaders__0__batches": None},
            {"job__loaders__0__batches": 5000},
        )
    ),
    (SLOW, made.profile(seen__worker_cpu_s=0.1)),
    (PREPARED, prepared(0.04)),
    (PREPARED, made.changed(prepared(0.5), job__loaders__0__num_workers=2)),
    (PREPARED, dataclasses.replace(prepared(0.5), host=None)),
    (PADDED, padded(0.2)),
    (PADDED, made.cpu_profile(job=None)),
    *(
        (SINGLY, rows(**changes))
        for changes in (
            {"job__loaders__0__read_singly": "it opens files"},
            {"job__loaders__0__num_workers": 2},
            {"job__loaders__0__batch_size": 4},
            {"job__loaders__0__batch_size": None},
        )
    ),
    # without workers on a cpu the work stays
    (
        NO_WORKERS,
        made.cpu_profile(
            {Kind.WAIT_DATA: 200.0}, job__loaders__0__num_workers=0, job__cores=2, job__threads=2
        ),
    ),
    (NO_WORKERS, recorded(dataclasses.replace(ITERATOR, doing="_MultiProcessingDataLoaderIter"))),
]


@pytest.mark.parametrize(("check", "profile"), SILENT)
def test_nothing_is_told(check: str, profile: Profile) -> None:
    assert made.findings(check, profile) == ()


TOLD = [
    told("without workers on few cores loading stays the longer part", NO_WORKERS,
         made.profile({Kind.WAIT_DATA: 600.0}, job__loaders__0__num_workers=0, job__cores=3),
         saves=pytest.approx(700 - 600 / 2, abs=1)),
    told("an iterable dataset must share out its data", NO_WORKERS,
         made.profile(WAITING, job__loaders__0__num_workers=0, job__loaders__0__iterable=True),
         "get_worker_info", boost=None),
    told("storage slow", SLOW, few(8, busy_ms=200.0), "84% of their time",
         saves=pytest.approx(60, abs=1)),
    told("decoding binds", SLOW, few(15, busy_ms=2350.0, job__cores=16),
         "a sample costs 9.18 ms, decoding a picture 4.17 ms", saves=pytest.approx(60, abs=1)),
    told("the line that the workers execute most", SLOW,
         dataclasses.replace(few(15, busy_ms=2350.0, job__cores=16), host=HostTime(10, 100.0, (),
             worker_lines=(HostLine(Place("data.py", 30, "Pictures.__getitem__",
             "image = Image.open(path)"), HostKind.LIBRARY, 900.0, "image.convert('RGB')", "PIL",
             loading=True),))),
         "most of it image.convert('RGB') in PIL at data.py:30", where="data.py:30"),
    told("the line of the data set and what it calls", PREPARED, prepared(0.5),
         "Pictures.__getitem__()", "Decode once", where="train.py:12",
         saves=0.45 * prepared(0.5).anatomy.step_ms),
    told("rows in memory are worth one index operation", SINGLY, rows(),
         "waits 260 ms of 360 ms for 512 rows", "BatchSampler(RandomSampler(dataset), 512",
         boost="batch-fetch", saves=pytest.approx(0.95 * 260, abs=0.5)),
    # 15 workers need 17 ms of their 260 for a step: what remains is the step without its wait
    told("without workers", NO_WORKERS,
         made.profile(WAITING, job__loaders__0__num_workers=0, job__cores=16, job__wait_share=0.72),
         "waits 260 ms of 360 ms", "num_workers=0, 16 cores", "num_workers=15", where="train.py:80",
         boost="loader-workers", severity=Severity.WARNING, saves=pytest.approx(260, abs=0.5)),
    # 298 ms of training, and half of 200 ms in which one of two workers holds each thread up
    told("without workers on a cpu the work stays", NO_WORKERS,
         made.cpu_profile({Kind.WAIT_DATA: 200.0}, job__loaders__0__num_workers=0),
         saves=pytest.approx(498 - (298 + 200 / 2), abs=1)),
    told("without workers on a cpu the work stays: 2", NO_WORKERS,
         made.cpu_profile({Kind.WAIT_DATA: 200.0}, job__loaders__0__num_workers=0, job__threads=4),
         "num_workers=2", saves=pytest.approx(200, abs=1)),
    told("a trace alone names the iterator", NO_WORKERS, recorded(ITERATOR), where=None,
         boost=None),
    # 310 / 99.6 ms, a quarter to spare
    told("too few workers", SLOW, few(2, busy_ms=310.0),
         "2 workers, computing 97% of their time; 32 cores", "num_workers=4", where="train.py:80",
         saves=pytest.approx(60, abs=1)),
    told("without a loader the models line is named", PADDED,
         padded(0.6, seen__loader_where=None, seen__model_where="train.py:64"),
         where="train.py:64"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
