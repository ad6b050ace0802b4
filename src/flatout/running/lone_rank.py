"""A program that trains alone, and is started again as ranks are: exactly as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flatout.running.command import Command
from flatout.running.rank_layout import RankLayout
from flatout.running.ranks import StartedRanks
from flatout_agent import wire


class LoneRank(StartedRanks):
    """No rank to the agent, and nothing is said of its end: that is the program's own business."""

    def __init__(self, command: Command, layout: RankLayout) -> None:
        super().__init__(command, layout, lambda failure: None)

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """As for any program."""
        super().prepare(orders, run_folder)
        return orders

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """As for any program."""
        return dict(base)
