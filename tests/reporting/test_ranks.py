"""The lines about ranks."""

from __future__ import annotations

from flatout.nouns.ranks import Scaling, ScalingRow
from flatout.reporting import ranks


def test_more_than_ranks_can_give_is_doubted() -> None:
    row = ScalingRow(2, 4.0, 17.0, (14.0, 20.0), losses="exact")
    assert "2 ranks cannot gain that much" in ranks.row_line(row, Scaling(2, 2, 68.0, (row,)))
