from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout_agent.wire import CallSeen


def opened(
    calls: float, seconds: float, files: int | None = 1, in_worker: bool = False
) -> tuple[CallSeen, ...]:
    return (CallSeen("open", calls, seconds, "data.py:31", "/data/all.h5", files, in_worker),)


def test_files_opened_anew() -> None:
    calls = opened(256.0, 0.05)
    profile = made.profile(
        {Kind.WAIT_DATA: 90.0}, job__loaders__0__num_workers=0, seen__calls=calls
    )
    finding = made.only("files-opened-anew", profile)
    assert (finding.code, finding.where) == ("DATA005", "data.py:31")
    assert "256.0 calls and 50.0 ms a step, 1 distinct file" in finding.evidence
    assert made.saved_ms(finding, profile) == pytest.approx(50, abs=0.5)


def test_files_opened_anew_in_workers_share_their_time() -> None:
    calls = opened(256.0, 0.4, in_worker=True)
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
        opened(256.0, 0.05, 64, in_worker=True),  # a worker names no more of them
        opened(256.0, 0.05, 200),  # a small data set, seen twice
        opened(1.0, 0.05),
        opened(256.0, 0.0005),
        (CallSeen("open", 256.0, 0.05, None, "/data/all.h5", 1),),
        opened(256.0, 0.05, None),
    ],
)
def test_opening_that_is_no_fault(calls: tuple[CallSeen, ...]) -> None:
    changes = {"job__loaders__0__num_workers": 0, "seen__calls": calls}
    assert made.findings("files-opened-anew", made.profile({Kind.WAIT_DATA: 90.0}, **changes)) == ()
