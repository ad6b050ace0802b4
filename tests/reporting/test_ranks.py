"""The lines about ranks."""

from __future__ import annotations

from flatout.nouns.ranks import RankFailure, Scaling, ScalingRow
from flatout.reporting import ranks

ERROR = RankFailure(
    1,
    2,
    "error",
    1,
    "ValueError: no such label",
    412,
    "train.py:88",
    1,
    1,
    0,
    1.43,
    "run/rank1.log",
)


def test_the_rank_that_ended_first() -> None:
    line = "rank 1 of 2 ended first: ValueError: no such label, step 412, train.py:88"
    assert ranks.failure_line(ERROR) == line
    hang = RankFailure(3, 8, "hang", 1, "it has taken no step for 31 s", 412)
    line = "rank 3 of 8 hangs: it has taken no step for 31 s, after step 412"
    assert ranks.failure_line(hang) == line


def test_more_than_ranks_can_give_is_doubted() -> None:
    row = ScalingRow(2, 4.0, 17.0, (14.0, 20.0), losses="exact")
    assert "2 ranks cannot gain that much" in ranks.row_line(row, Scaling(2, 2, 68.0, (row,)))
