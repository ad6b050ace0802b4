"""Whether it can help to start the ranks of a job again, and how often that was done.

A script's own error (bad data, no memory left, a wrong shape) would come again. A cause outside may
not: a process that was killed, a machine that is gone, a connection that broke, a rank that stands
still. A job that has not taken a single step is not started again, because it cannot start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from flatout.nouns.ranks import RankFailure
from flatout.running.one.command import Command
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.started import StartedRanks
from flatout_agent import wire

OUTSIDE = re.compile(
    r"NCCL|ncclUnhandled|DistBackendError|DistNetworkError|DistStoreError|gloo|TCPStore"
    r"|[Tt]imed out|Connection (?:reset|closed|refused)|Broken pipe|closed by peer"
    r"|uncorrectable|ECC|hardware|Xid|NVLink|fell off the bus|Bus error"
    r"|Stale file handle|Input/output error|Transport endpoint"
)
"""In an error of the network, a device or a file system, which may not come again."""
SHELL_SIGNALS = range(129, 129 + 64)
"""128 + N: what a shell in between returns if signal N has ended a program."""


def may_help(failure: RankFailure) -> bool:
    """Whether the job may succeed if all its ranks are started once more."""
    if failure.step is None or failure.ending == "early":
        return False
    if failure.ending in ("gone", "hang"):
        return True
    code = failure.returncode
    if code < 0 or code in SHELL_SIGNALS or code == wire.LOST_EXIT:
        return True
    return bool(OUTSIDE.search(failure.error))


class Restarts:
    """Starts the ranks of a run again."""

    def __init__(
        self, most: int, make: Callable[[], StartedRanks], tell: Callable[[int], None]
    ) -> None:
        """most: how often; make: makes the ranks; tell: gets the number of each start, from 1."""
        self._most, self._make, self._tell = most, make, tell
        self._done = 0

    def after(self, ended: StartedRanks) -> StartedRanks | None:
        """The ranks to go on with, or None if the run is over."""
        failure = ended.failure
        if failure is None or not ended.again(self._done < self._most and may_help(failure)):
            return None
        self._done += 1
        self._tell(self._done)
        return self._make()


class LoneRank(StartedRanks):
    """A program that trains alone: to the agent it is no rank, and its failure is not reported."""

    def __init__(self, command: Command, layout: RankLayout) -> None:
        super().__init__(command, layout, lambda failure: None)

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """As for any program."""
        super().prepare(orders, run_folder)
        return orders

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """As for any program."""
        return dict(base)
