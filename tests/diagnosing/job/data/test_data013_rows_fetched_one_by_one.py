from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.data.jobs import WAITING
from flatout.nouns.profile import Profile

NAME = "rows-fetched-one-by-one"


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


def test_rows_in_memory_are_worth_one_index_operation() -> None:
    profile = rows()
    finding = made.only(NAME, profile)
    assert (finding.code, finding.boost) == ("DATA013", "batch-fetch")
    assert "waits 260 ms of 360 ms for 512 rows" in finding.evidence
    assert "BatchSampler(RandomSampler(dataset), 512" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(0.95 * 260, abs=0.5)


def test_it_stands_in_place_of_workers() -> None:
    codes = made.codes(rows(job__cores=16))
    assert "DATA013" in codes
    assert "DATA001" not in codes


@pytest.mark.parametrize(
    "changes",
    [
        {"job__loaders__0__read_singly": "it opens files"},
        {"job__loaders__0__num_workers": 2},
        {"job__loaders__0__batch_size": 4},
        {"job__loaders__0__batch_size": None},
    ],
)
def test_silent(changes: dict[str, object]) -> None:
    assert made.findings(NAME, rows(**changes)) == ()
