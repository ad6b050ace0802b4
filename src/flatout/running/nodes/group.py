"""The ranks of one node among several: what ends them here is told to all nodes, and vice versa.

The program in the foreground is the first rank of the node. On node 0 that is rank 0, which has the
terminal; on the other nodes it writes to a log, like all ranks.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flatout.nouns.nodes import NodesStill
from flatout.nouns.ranks import RankFailure
from flatout.running.nodes.connections import NodeLimits
from flatout.running.nodes.link import NodeLink
from flatout.running.one.command import Command
from flatout.running.one.records import Processes, Tail
from flatout.running.ranks import endings
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.started import INTERRUPTS, RankLimits, StartedRanks
from flatout_agent import wire


class NodeGroup(StartedRanks):
    """All ranks of this node."""

    def __init__(
        self,
        command: Command,
        layout: RankLayout,
        tell: Callable[[RankFailure], None],
        link: NodeLink,
        leave: Callable[[], None],
        limits: RankLimits | None = None,
        node_limits: NodeLimits | None = None,
    ) -> None:
        """tell: called with what ended the job, on node 0 or if node 0 is gone.

        link: to node 0, joined; leave: ends the link, and on node 0 the leader, at the end.
        """
        super().__init__(command, layout, tell, limits)
        self._link, self._leave, self._index = link, leave, link.index
        self._node_limits = node_limits or NodeLimits()
        self._own_failure: RankFailure | None = None

    # What the foreground asks for ---------------------------------------------------------------

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """The orders of this node's first rank; where rows are cut, only rank 0 may save."""
        prepared = super().prepare(orders, run_folder)
        if self.layout.first == 0 or prepared.ranks is None or self._native:
            return prepared
        scratch = str(self._folder / f"rank{self.layout.first}" / "scratch")
        return replace(prepared, ranks=replace(prepared.ranks, scratch=scratch))

    def log(self) -> Path | None:
        """Only the output of rank 0 goes to the terminal."""
        if self.layout.first == 0:
            return None
        return self._folder / f"rank{self.layout.first}.log"

    def signal(self, number: int) -> None:
        """The first rank here has had this signal: pass it on to all others, on all nodes."""
        super().signal(number)
        self._link.send(signal=number, ends=signal.Signals(number).name in INTERRUPTS)

    def again(self, helps: bool) -> bool:
        """As node 0 has decided for all."""
        verdict = self._link.verdict
        return verdict is not None and verdict.again

    def returncode(self, own: int) -> int:
        """The same on all nodes if a rank has failed."""
        verdict = self._link.verdict
        if verdict is not None and verdict.refused is not None:
            return 1 if self._index else wire.REFUSED_EXIT
        return super().returncode(own)

    def last_words(
        self, records: Iterable[tuple[int, wire.Record]], stderr: bytes
    ) -> tuple[tuple[tuple[int, wire.Record], ...], bytes]:
        """What the rank that ended first has left, here or as its node has sent it."""
        verdict = self._link.verdict
        own, failure = self._own_failure, self.failure
        if own is not None and failure is not None and failure.rank == own.rank:
            return super().last_words(records, stderr)
        return (), verdict.crash.encode() if verdict is not None else b""

    def check_refusal(self, records: Iterable[tuple[int, wire.Record]]) -> None:
        """Only node 0 raises it."""
        verdict = self._link.verdict
        if self._index or verdict is None or verdict.refused is None:
            return
        raise endings.refusal(*verdict.refused)

    # Deciding -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        # Pass on the signals that other nodes have had.
        while self._link.signals:
            number = self._link.signals.popleft()
            process = self._members[0].process
            with suppress(OSError, ValueError):
                if isinstance(process, subprocess.Popen):
                    process.send_signal(number)
            super().signal(number)
        if self._link.verdict is not None:
            return True
        over = super()._over()
        self._link.still = self._hang.seen
        steps = [self._pulses.step(member.rank) for member in self._members]
        self._link.step = max((step for step in steps if step is not None), default=None)
        return over

    def _others(self) -> NodesStill:
        return self._link.others

    def _ended(self) -> None:
        """Say how it ended here, wait for the verdict of node 0, and tell that."""
        self._own_failure, own = self.failure, self.failure
        processes = Processes(Tail(self._folder / "records").new())
        refused = next((p.refused for p in processes.all if p.refused), None)
        if refused is not None:
            self._link.send(refused=refused.reason, next=refused.next_step)
        elif own is not None:
            member = self._members[own.rank - self.layout.first]
            crash = endings.crash(processes, own.rank, member.process.pid)
            lost = own.ending == "error" and endings.is_consequence(
                crash or own.error, own.returncode
            )
            self._link.failed(own, crash, lost)
        self._link.send(ended=self._members[0].code or 0)
        # Other ranks may train or save for long, but not after a signal that ends the job.
        while self._link.verdict is None:
            at = self._interrupted_at
            if at is not None and time.monotonic() - at > self._node_limits.interrupted_s:
                break
            self._link.signals.clear()
            time.sleep(self.limits.poll_s)
        verdict = self._link.verdict
        self.failure = verdict.failure if verdict is not None else own
        if verdict is None or not verdict.again:
            self._leave()
        failure = self.failure
        if failure is None:
            return
        leader_is_gone = failure.ending == "gone" and failure.rank == 0
        if self._index == 0 or leader_is_gone:
            self._tell(failure)
