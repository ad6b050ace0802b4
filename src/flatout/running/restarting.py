"""Whether it can help to start the ranks of a job again, and how often that was done.

A script's own error would come again: bad data, no memory left, a wrong shape. What comes from
outside may not: a process that was killed, a machine that is gone, a connection that broke, a rank
that stands still. And nothing is started again that has not taken a single step: it cannot start.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from flatout.nouns.ranks import RankFailure
from flatout.running.ranks import StartedRanks
from flatout_agent import wire

OUTSIDE = re.compile(
    r"NCCL|ncclUnhandled|DistBackendError|DistNetworkError|DistStoreError|gloo|TCPStore"
    r"|[Tt]imed out|Connection (?:reset|closed|refused)|Broken pipe|closed by peer"
    r"|uncorrectable|ECC|hardware|Xid|NVLink|fell off the bus|Bus error"
    r"|Stale file handle|Input/output error|Transport endpoint"
)
"""In an error of the network, of a device or of a file system, which may be well the next time."""
SHELL_SIGNALS = range(129, 129 + 64)
"""128 + N, as a shell in between tells that signal N has ended a program."""


def may_help(failure: RankFailure) -> bool:
    """Whether the job may go on if all its ranks are started once more."""
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
        """most: times; make: all ranks anew; tell: called with the number of the start, from 1."""
        self._most, self._make, self._tell = most, make, tell
        self._done = 0

    def after(self, ended: StartedRanks) -> StartedRanks | None:
        """The ranks to go on with; None: it is over."""
        failure = ended.failure
        if failure is None or not ended.again(self._done < self._most and may_help(failure)):
            return None
        self._done += 1
        self._tell(self._done)
        return self._make()
