"""The ranks of one run: rank 0 is the program in the foreground, the others are started beside it.

Each other rank has its own session, no input, and writes to `rank<r>.log` in the run's folder. What
it would save goes to a folder of its own. When one rank ends, the others would wait for it for
ever: they are asked for their stacks and ended, and the first one is reported. A rank that stands
still while the others wait for it is found by its pulse and its stacks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from flatout.nouns.nodes import NodesStill
from flatout.nouns.ranks import RankEnding, RankFailure
from flatout.running.one import tree
from flatout.running.one.command import Command
from flatout.running.one.records import Processes, Tail
from flatout.running.one.trial_process import TrialProcess, log_tail, write_orders
from flatout.running.ranks import endings, stacks
from flatout.running.ranks.hang import HangSearch
from flatout.running.ranks.layout import RankLayout
from flatout.running.ranks.pulses import RankPulses
from flatout_agent import wire

INTERRUPTS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
TERMINAL = ("SIGINT", "SIGQUIT", "SIGBREAK")
"""A terminal sends these to all processes of a program."""


@dataclass(frozen=True)
class RankLimits:
    """How long to wait for what."""

    poll_s: float = 0.05
    settle_s: float = 5.0
    """For the rank that is the cause, if the first to end had only lost another one."""
    stacks_s: float = 1.0
    grace_s: float = 1.0
    """Between asking the others to end and killing them."""
    early_s: float = 1.0
    """How long a rank may run on after another has ended in order, before it is examined."""
    interrupt_s: float = 5.0
    """How long the others may run on after rank 0 has ended by Ctrl-C or SIGTERM."""
    interrupted_s: float = 30.0
    """How long after such a signal no rank is blamed for ending."""
    still_s: float = 30.0
    """A rank stands still after this time without a step, or 10 usual steps if that is longer."""
    look_s: float = 1.0
    """Between two looks at what a rank does."""


class _Member:
    """One rank's program."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes] | TrialProcess, log: Path | None
    ) -> None:
        """log: its output, or None for the terminal."""
        self.rank = rank
        self.process = process
        self.log = log
        self.code: int | None = None
        self.ended_at = time.monotonic()
        """When it was seen to have ended, or was looked at last while it runs."""
        self._root = tree.found(process.pid)

    def look(self) -> bool:
        """Whether it still runs."""
        if self.code is None:
            if isinstance(self.process, TrialProcess):
                self.code = self.process.returncode
            else:
                self.code = self.process.poll()
            self.ended_at = time.monotonic()
        return self.code is None

    def family(self) -> list[psutil.Process]:
        own_session = isinstance(self.process, TrialProcess)
        return [] if self._root is None else tree.family(self._root, own_session)

    def signal(self, number: int) -> None:
        """Pass a signal on, as a terminal or `kill` would send it."""
        with suppress(OSError, ValueError, psutil.Error):
            if sys.platform != "win32" and signal.Signals(number).name in TERMINAL:
                os.killpg(self.process.pid, number)
            elif self._root is not None:
                self._root.send_signal(number)


class StartedRanks:
    """All ranks of one run. `foreground.run` calls `prepare`, `follow` and `signal`."""

    def __init__(
        self,
        command: Command,
        layout: RankLayout,
        tell: Callable[[RankFailure], None],
        limits: RankLimits | None = None,
    ) -> None:
        """tell: called if the ranks had to be ended because of one of them."""
        self.command, self.layout, self._tell = command, layout.begun(), tell
        self.limits = limits or RankLimits()
        self.failure: RankFailure | None = None
        self._orders: wire.Orders | None = None
        self._folder = Path()
        self._members: list[_Member] = []
        self._interrupted_at: float | None = None
        self._early_look_at = 0.0
        self._pulses = RankPulses(None)
        self._native = layout.native is not None
        self._hang = HangSearch(self.limits.still_s, self.limits.look_s, self._native)
        self._looked_at = time.monotonic()

    # What the foreground asks for ---------------------------------------------------------------

    def prepare(self, orders: wire.Orders, run_folder: Path) -> wire.Orders:
        """The orders of rank 0, from those of a program that trains alone."""
        self._folder = run_folder.absolute()
        self._orders = orders
        if orders.pulse:
            self._pulses = RankPulses(Path(orders.pulse))
        return replace(orders, ranks=self._rank_orders(0, ""))

    def log(self) -> Path | None:
        """Where the output of the first rank here goes, or None for the terminal."""
        return None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of rank 0, from that of a program that trains alone."""
        return self.layout.environment(0, base)

    def signal(self, number: int) -> None:
        """Rank 0 has had this signal: pass it on to the others."""
        if signal.Signals(number).name in INTERRUPTS:
            self._interrupted_at = time.monotonic()
        for member in self._members[1:]:
            member.signal(number)

    def follow(self, process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
        """Start the other ranks, follow all to their ends, and end those that must not stay.

        environment: that of a program that trains alone. Raises UserError if a rank cannot be
        started.
        """
        self._members = [_Member(self.layout.first, process, self.log())]
        try:
            for local in range(1, self.layout.size):
                assert self._orders is not None
                rank = self.layout.first + local
                folder = self._folder / f"rank{rank}"
                orders = replace(
                    self._orders, ranks=self._rank_orders(local, str(folder / "scratch"))
                )
                base = {**environment, wire.ORDERS_ENV: str(write_orders(orders, folder))}
                started = TrialProcess(
                    self.command.argv,
                    self.layout.environment(local, base),
                    Path(orders.records),
                    self._folder / f"rank{rank}.log",
                )
                self._members.append(_Member(self.layout.first + local, started, started.log))
            while not self._over():
                time.sleep(self.limits.poll_s)
        finally:
            self._end(self._members)
        self._ended()

    def _ended(self) -> None:
        """All ranks here have ended."""
        if self.failure is not None:
            self._tell(self.failure)

    def again(self, helps: bool) -> bool:
        """Whether to start once more. helps: another start is allowed and may succeed."""
        return helps

    def returncode(self, own: int) -> int:
        """The exit code of the run. own: that of rank 0."""
        if self.failure is not None:
            return self.failure.returncode
        if any(member.code == wire.REFUSED_EXIT for member in self._members):
            return wire.REFUSED_EXIT
        return own

    def last_words(
        self, records: Iterable[tuple[int, wire.Record]], stderr: bytes
    ) -> tuple[tuple[tuple[int, wire.Record], ...], bytes]:
        """Records and output of the rank that ended first.

        records: of all ranks; stderr: of rank 0.
        """
        entries = tuple(records)
        if self.failure is None:
            return entries, stderr
        member = self._members[self.failure.rank - self.layout.first]
        pids = _programs(member, entries)
        own = tuple(entry for entry in entries if entry[0] in pids)
        if member.log is None:
            return own, stderr
        return own, "\n".join(log_tail(member.log, 400)).encode()

    def check_refusal(self, records: Iterable[tuple[int, wire.Record]]) -> None:
        """Raise UserError, with the reason, if a rank has refused to train this job."""
        for process in Processes(records).all:
            if process.refused is not None:
                raise endings.refusal(process.refused.reason, process.refused.next_step)

    # Starting and ending ------------------------------------------------------------------------

    def _rank_orders(self, local: int, scratch: str) -> wire.RankOrders:
        assert self._orders is not None
        # Locks of files work in memory; over NFS they may not.
        store = Path(self._orders.pulse or self._folder) / "store"
        return self.layout.orders(local, store, scratch, str(Path.cwd()))

    def _end(self, members: Iterable[_Member]) -> None:
        """End these ranks with all that they started; rank 0 only if it still runs."""
        running = [member for member in members if member.look()]
        if running:
            find = [member.family for member in running]
            tree.end(lambda: [found for family in find for found in family()], self.limits.grace_s)
        for member in members:
            if isinstance(member.process, TrialProcess):
                member.process.stop(self.limits.grace_s)

    # Deciding -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Whether there is nothing more to wait for."""
        running = [member for member in self._members if member.look()]
        ended = [member for member in self._members if member.code is not None]
        now = time.monotonic()
        self._pulses.look(now - self._looked_at)
        self._looked_at = now
        interrupted_at = self._interrupted_at
        if interrupted_at is not None and now - interrupted_at < self.limits.interrupted_s:
            return self._first_has_ended(running, now)
        refusals = [member for member in ended if member.code == wire.REFUSED_EXIT]
        if refusals:
            return not running or now - refusals[0].ended_at > self.limits.interrupt_s
        if any(member.code == wire.SAVED_EXIT for member in ended):
            return self._first_has_ended(running, now)
        if bad := [member for member in ended if member.code]:
            self._blame_one_of(bad)
        elif ended and running:
            self._look_for_an_early_end(ended, running, now)
        elif running:
            self._look_for_a_hang(running, now)
        return not running or self.failure is not None

    def _first_has_ended(self, running: list[_Member], now: float) -> bool:
        """All are to end, but the first one may have to write for the others."""
        first = self._members[0]
        return first.code is not None and (
            not running or now - first.ended_at > self.limits.interrupt_s
        )

    def _blame_one_of(self, bad: list[_Member]) -> None:
        """Find the rank that is the cause; one that lost it may have ended before it."""
        deadline = time.monotonic() + self.limits.settle_s
        while True:
            if any(member.code == wire.REFUSED_EXIT for member in bad):
                return  # the others have lost it
            processes = Processes(Tail(self._folder / "records").new())
            for member in sorted(bad, key=lambda member: member.ended_at):
                crash = endings.crash(processes, member.rank, member.process.pid)
                if not endings.is_consequence(crash, member.code or 0):
                    self._fail(member, "error", crash)
                    return
            running = [member for member in self._members if member.look()]
            ended = [other for other in self._members if other not in running and other.code]
            if len(ended) == len(bad):  # else another has ended meanwhile, perhaps the last one
                if time.monotonic() > deadline or not running:
                    break
                time.sleep(self.limits.poll_s)
            bad = ended
        orderly = [member for member in self._members if member.code == 0]
        first = min(orderly or bad, key=lambda member: member.ended_at)
        crash = endings.crash(processes, first.rank, first.process.pid)
        self._fail(first, "early" if orderly else "error", crash)

    def _look_for_an_early_end(
        self, ended: list[_Member], running: list[_Member], now: float
    ) -> None:
        """A rank may save or evaluate at its end, but one that still trains waits for ever."""
        first = min(ended, key=lambda member: member.ended_at)
        if now - max(first.ended_at, self._early_look_at) < self.limits.early_s:
            return
        last = self._pulses.step(first.rank)
        ahead = [
            member
            for member in running
            if last is not None and (self._pulses.step(member.rank) or 0) > last
        ]
        if ahead or (self._waits(running) and self._waits(running)):
            self._fail(first, "early", "")
        self._early_look_at = time.monotonic()

    def _waits(self, running: list[_Member]) -> bool:
        """Whether one of them waits for others now."""
        answers = self._ask(running)
        return any(stacks.waits_for_others(answer.text, self._native) for answer in answers)

    def _look_for_a_hang(self, running: list[_Member], now: float) -> None:
        families = {member.rank: member.family for member in running}
        hang = self._hang.look(self._pulses, families, now, self._others())
        if hang is None:
            return
        member = self._members[hang.rank - self.layout.first]
        error = f"it has taken no step for {hang.still_s:.0f} s"
        self._report(member, "hang", 1, error, hang.place, hang.answers)

    def _others(self) -> NodesStill | None:
        """How ranks on other machines stand still, or None if there are none."""
        return None

    def _fail(self, member: _Member, ending: RankEnding, crash: str) -> None:
        code = member.code or 1
        if ending == "early":
            error = "it ended normally while the others still trained"
        else:
            error = endings.error_line(crash, code, member.log)
        answers = self._ask([other for other in self._members if other.look()])
        place = stacks.place_of_error(crash)
        self._report(member, ending, code, error, place, answers)

    def _ask(self, members: list[_Member]) -> list[stacks.RankStacks]:
        pulses = self._pulses.by_rank
        asked = [pulses[member.rank] for member in members if member.rank in pulses]
        return stacks.ask(((pulse.ring, pulse.step) for pulse in asked), self.limits.stacks_s)

    def _report(
        self,
        member: _Member,
        ending: RankEnding,
        code: int,
        error: str,
        place: str | None,
        answers: list[stacks.RankStacks],
    ) -> None:
        others = [other for other in self._members if other is not member and other.look()]
        waiting = [
            answer
            for answer in answers
            if answer.ring.header.rank != member.rank
            and stacks.waits_for_others(answer.text, self._native)
        ]
        lost = [other for other in self._members if other.code == wire.LOST_EXIT]
        text = stacks.together(answers)
        began = member.ended_at
        self._end(self._members)
        self._pulses.look(0.0)
        step = self._pulses.step(member.rank)
        self.failure = RankFailure(
            rank=member.rank,
            size=self.layout.total,
            ending=ending,
            returncode=code,
            error=error,
            step=step,
            place=place,
            ended=len(others),
            lost=len(lost),
            waiting=len(waiting),
            ended_after_s=time.monotonic() - began,
            log=str(member.log) if member.log is not None else None,
            stacks=stacks.write(text, self._folder) if text else None,
        )


def _programs(member: _Member, records: Iterable[tuple[int, wire.Record]]) -> set[int]:
    """The processes that record as a rank's program.

    The python.exe of a virtual environment on Windows only starts another one, which does.
    """
    seen = Processes(records).all
    if any(process.pid == member.process.pid for process in seen):
        return {member.process.pid}
    return {process.pid for process in seen if process.rank == member.rank}
