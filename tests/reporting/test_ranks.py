"""The lines about ranks."""

from __future__ import annotations

import pytest

from flatout.nouns.ranks import ModelCut, RankFailure, RanksEnd, Scaling, ScalingRow
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


@pytest.mark.parametrize(
    ("size", "ended", "waiting", "line"),
    [
        (2, 1, 1, "the other waited in the exchange between ranks and was ended 1.4 s later"),
        (2, 1, 0, "the other was ended 1.4 s later"),
        (8, 7, 7, "the other 7 waited in the exchange between ranks and were ended 1.4 s later"),
        (
            8,
            7,
            5,
            "the other 7 (5 of them waited in the exchange between ranks) were ended 1.4 s later",
        ),
        (2, 0, 0, ""),
    ],
)
def test_what_became_of_the_others(size: int, ended: int, waiting: int, line: str) -> None:
    failure = RankFailure(1, size, "error", 1, "x", ended=ended, waiting=waiting, ended_after_s=1.4)
    assert ranks.others_line(failure).strip() == line


def test_others_that_lost_it() -> None:
    failure = RankFailure(1, 2, "error", 1, "x", lost=1)
    line = "the other lost it in the exchange between ranks and ended"
    assert ranks.others_line(failure).strip() == line


def test_all_that_is_told_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    ranks.failed(ERROR)
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("flatout: error: rank 1 of 2 ended first: ValueError")
    assert told[-1].endswith("next: flatout explain run/rank1.log")


def test_how_they_trained() -> None:
    models = (
        ModelCut("Net", True, rows=64, error=1e-7),
        ModelCut("Head", False, "its rows are not independent"),
    )
    end = RanksEnd(2, "gloo", models, 4 << 20, 0.0123, 0.0021)
    first, second = ranks.ended_lines(end)
    assert first == (
        "2 ranks (gloo); gradients of 4.0 MiB exchanged in 12.3 ms a step; "
        "rows joined in 2.10 ms a step; each rank computed its own rows of Net"
    )
    assert second == "every rank computed all of Head: its rows are not independent"
    assert list(ranks.ended_lines(RanksEnd(2))) == ["2 ranks"]


def test_a_row_of_the_trial() -> None:
    row = ScalingRow(2, 21.0, 1.83, (1.8, 1.86), "exact")
    assert ranks.row_line(row, Scaling(2, 2, 38.4, (row,))) == (
        "2 ranks: 1.83x (1.80-1.86), 21.0 ms a step instead of 38.4 ms; the same losses"
    )
    failed = ScalingRow(4, error="ValueError: no\n(exit code 1)")
    assert ranks.row_line(failed, Scaling(4, None, 38.4, ())) == (
        "4 ranks: ValueError: no (exit code 1)"
    )


def test_a_row_of_a_program_that_knows_ranks_itself() -> None:
    row = ScalingRow(2, 21.0, 1.83, (1.8, 1.86), losses="exact", native="accelerate")
    line = ranks.row_line(row, Scaling(2, 2, 38.4, (row,)))
    assert line.endswith(", started as torchrun would; the same losses")
    own = ScalingRow(2, 21.0, 1.83, (1.8, 1.86), losses_reason="its own affair", native="ddp")
    assert ranks.row_line(own, Scaling(2, 2, 38.4, (own,))).endswith("; its own affair")
    (told,) = ranks.ended_lines(RanksEnd(2, "gloo", native="lightning"))
    assert told == "2 ranks (gloo); started as torchrun would; Lightning divided the work"


def test_more_than_ranks_can_give_is_doubted() -> None:
    row = ScalingRow(2, 4.0, 17.0, (14.0, 20.0), losses="exact")
    assert "2 ranks cannot give as much" in ranks.row_line(row, Scaling(2, 2, 68.0, (row,)))
