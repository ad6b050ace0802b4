"""The ranks of one node among several: what ends them here is told to all nodes, and the reverse.

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

from flatout.nouns.errors import UserError
from flatout.nouns.nodes import NodesStill
from flatout.nouns.ranks import RankFailure
from flatout.running import rank_endings
from flatout.running.command import Command
from flatout.running.node_book import NodeLimits
from flatout.running.node_link import NodeLink
from flatout.running.processes import Processes
from flatout.running.rank_endings import RankRecords
from flatout.running.rank_layout import RankLayout
from flatout.running.ranks import INTERRUPTS, RankLimits, StartedRanks
from flatout.running.records import Tail
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
        """tell: called with what ended the job, on node 0 and where that is gone.

        link: to node 0, joined; leave: ends it, and node 0 with it, once all is said.
        """
        super().__init__(command, layout, tell, limits)
        self._link, self._leave, self._index = link, leave, link.index
        self._node_limits = node_limits or NodeLimits()
        self._own_failure: RankFailure | None = None

    # What the foreground asks for ---------------------------------------------------------------

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """Those of this node's first rank; only rank 0 may save, where rows are cut."""
        prepared = super().prepare(orders, run_folder)
        if self.layout.first == 0 or prepared.ranks is None or self._native:
            return prepared
        scratch = str(self._folder / f"rank{self.layout.first}" / "scratch")
        return replace(prepared, ranks=replace(prepared.ranks, scratch=scratch))

    def log(self) -> Path | None:
        """Only rank 0 is heard."""
        if self.layout.first == 0:
            return None
        return self._folder / f"rank{self.layout.first}.log"

    def signal(self, number: int) -> None:
        """The first rank here has had this signal: pass it on to all others, on all nodes."""
        super().signal(number)
        self._link.send(signal=number, ends=signal.Signals(number).name in INTERRUPTS)

    def again(self, helps: bool) -> bool:
        """Node 0 has decided it for all."""
        verdict = self._link.verdict
        return verdict is not None and verdict.again

    def returncode(self, own: int) -> int:
        """The same on all nodes where a rank has failed."""
        verdict = self._link.verdict
        if verdict is not None and verdict.refused is not None:
            return 1 if self._index else wire.REFUSED_EXIT
        return super().returncode(own)

    def last_words(
        self, records: Iterable[tuple[int, wire.Record]], stderr: bytes
    ) -> tuple[tuple[tuple[int, wire.Record], ...], bytes]:
        """What the rank that ended first has left: here, or as its node has sent it."""
        verdict = self._link.verdict
        own, failure = self._own_failure, self.failure
        if own is not None and failure is not None and failure.rank == own.rank:
            return super().last_words(records, stderr)
        return (), verdict.crash.encode() if verdict is not None else b""

    def check_refusal(self, records: Iterable[tuple[int, wire.Record]]) -> None:
        """Only node 0 tells it."""
        verdict = self._link.verdict
        if self._index or verdict is None or verdict.refused is None:
            return
        reason, next_step = verdict.refused
        message = f"the ranks cannot train this script together: {reason}"
        raise UserError(message, next_step or None, 1)

    # Deciding -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        self._pass_on_signals()
        if self._link.verdict is not None:
            return True
        over = super()._over()
        self._link.still = self._hang.seen
        steps = [self._pulses.step(member.rank) for member in self._members]
        self._link.step = max((step for step in steps if step is not None), default=None)
        return over

    def _others(self) -> NodesStill:
        return self._link.others

    def _pass_on_signals(self) -> None:
        """Those that another node's flatout has had."""
        while self._link.signals:
            number = self._link.signals.popleft()
            process = self._members[0].process
            with suppress(OSError, ValueError):
                if isinstance(process, subprocess.Popen):
                    process.send_signal(number)
            super().signal(number)

    def _ended(self) -> None:
        """Say how it ended here, wait for what node 0 makes of it, and tell that."""
        self._own_failure, own = self.failure, self.failure
        records = tuple(Tail(self._folder / "records").new())
        refused = next((p.refused for p in Processes(records).all if p.refused), None)
        if refused is not None:
            self._link.send(refused=refused.reason, next=refused.next_step)
        elif own is not None:
            member = self._members[own.rank - self.layout.first]
            crash = RankRecords(records).crash(own.rank, member.process.pid)
            lost = own.ending == "error" and rank_endings.is_consequence(
                crash or own.error, own.returncode
            )
            self._link.failed(own, crash, lost)
        self._link.send(ended=self._members[0].code or 0)
        self._wait_for_verdict()
        verdict = self._link.verdict
        self.failure = verdict.failure if verdict is not None else own
        if verdict is None or not verdict.again:
            self._leave()
        if self.failure is not None and (self._index == 0 or self._leader_is_gone()):
            self._tell(self.failure)

    def _wait_for_verdict(self) -> None:
        """Others may train, save or evaluate for long; not after a signal that ends the job."""
        while self._link.verdict is None:
            at = self._interrupted_at
            if at is not None and time.monotonic() - at > self._node_limits.interrupted_s:
                return
            self._link.signals.clear()
            time.sleep(self.limits.poll_s)

    def _leader_is_gone(self) -> bool:
        failure = self.failure
        return failure is not None and failure.ending == "gone" and failure.rank == 0
