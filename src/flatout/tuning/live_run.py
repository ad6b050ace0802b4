"""A user's run that is tuned while it trains: orders, decisions as they are made, result."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flatout.knowledge import boosts as known
from flatout.measuring import live
from flatout.measuring.live import LiveRun
from flatout.nouns import units
from flatout.nouns.plan import Plan
from flatout.nouns.trial import Measurement, Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.probing.identity import identity
from flatout.running.one.command import Command
from flatout.running.one.records import Tail
from flatout.tuning import plan_file, planning
from flatout.tuning.candidates import Allowance
from flatout_agent import wire

POLL_S = 0.2
SILENT_S = 60.0
"""Without a decision for so long, a line says what is being done."""
START = "needs_start"
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT, 0xC000013A)
"""Exit codes after Ctrl-C: from the signal, from Python or a shell, and on Windows."""
FAIRLY = (Verdict.DIFFERENT, Verdict.FAILED)
"""The Guard's verdicts, which need no pairs."""


class LiveTuning:
    """One such run; when called with its records' folder and its process, it follows them."""

    def __init__(
        self,
        plan: Plan,
        selection: tuple[bool, Sequence[str], Sequence[str]],
        steps_left: int | None,
        on_decision: Callable[[Trial], None],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """plan: the initial plan. selection: (whether exact only, only these, not these).

        on_decision: called with each decision, as it falls. tell: called with a line on what is
        being done where there was no decision for a minute. Raises UserError for an unknown boost.
        """
        self.plan, self.on_decision, self.tell = plan, on_decision, tell
        exact, only, skip = selection
        choice = Allowance(exact, tuple(only), tuple(skip))
        allowed = [boost.id for boost in known.every() if choice.refuses(boost) is None]
        self.boosts = tuple(boost for boost in plan.boosts if boost.id in allowed)
        self.orders = wire.LiveOrders(allowed=tuple(allowed), steps=steps_left)
        self.run = LiveRun()
        self.interrupted = False
        """The program was ended by Ctrl-C."""
        self._began = self._told = time.monotonic()
        self._reported = 0

    def __call__(self, records: Path, process: subprocess.Popen[bytes]) -> None:
        """Follow the program until it has ended."""
        tail = Tail(records)
        while True:
            has_ended = process.poll() is not None
            self.interrupted = process.returncode in INTERRUPTED
            self.heard(tail.new())
            if has_ended:
                return
            time.sleep(POLL_S)

    def heard(self, records: Iterable[tuple[int, wire.Record]]) -> None:
        """Account for new records, (process id, record) each, and report the decisions in them."""
        for pid, record in records:
            self.run.add(pid, record)
        rows = live.rows(self.run, [boost.id for boost in self.boosts])
        reported, self._reported = self._reported, len(rows)
        for row in rows[reported:]:
            self.on_decision(row)
            if row.verdict is not Verdict.SKIPPED:
                self._told = time.monotonic()
        is_settled = self.run.summary is not None and self.run.summary.settled
        if time.monotonic() - self._told >= SILENT_S and not is_settled:
            self._told = time.monotonic()
            self.tell(self._under_way())

    def _under_way(self) -> str:
        """What was done last, in one line."""
        elapsed = units.duration(time.monotonic() - self._began)
        blocks = self.run.blocks
        if not blocks:
            return f"still before the first comparison, after {elapsed}"
        last = blocks[-1]
        on = f"with {', '.join(last.on)}" if last.on else live.AS_WRITTEN
        return f"step {last.step + last.steps - 1:,}, {on}: still comparing, after {elapsed}"

    def only_at_start(self) -> dict[str, str]:
        """Boosts that can only be set at the program's start, each with the lines to add for it."""
        facts = self.run.facts
        waiting = {row.tried: row.params for row in live.rows(self.run) if row.why_untried == START}
        if facts is None:
            return {}
        return {name: known.get(name).by_hand(facts, waiting[name]) for name in waiting if name}

    def write_plan(
        self, command: Command, path: Path, folder: Path, warn: Callable[[str], None]
    ) -> Tuned | None:
        """Write the plan to `path`, or if that cannot be, into `folder` and say so.

        Returns a report's content, or None if nothing was measured.
        """
        tuned = self.outcome(command)
        if tuned is None or tuned.plan is None:
            return tuned
        written = plan_file.write_or_keep(tuned.plan, path, folder, warn)
        return dataclasses.replace(tuned, plan_path=str(written))

    def outcome(self, command: Command) -> Tuned | None:
        """The content of a report on the run, or None if nothing was measured."""
        run, machine = self.run, identity(self.run.facts.torch if self.run.facts else None)
        written, summary = live.written(run), run.summary
        if written is None or summary is None:
            return None
        rows = tuple(live.rows(run, [boost.id for boost in self.boosts]))
        now_ms = summary.now_ms if summary.kept else None
        left = [row for row in rows if row.left]
        failed = [str(row.tried) for row in left if row.why_untried == "program_failed"]
        untried = [str(row.tried) for row in left if row.why_untried != "program_failed"]
        plan = planning.of_run(command, run, machine, self.plan)
        drift = {"at first": next(iter(written.steps_ms), None), "later": written.step_ms}
        return Tuned(
            command=command.display,
            machine=machine,
            baseline=written,
            best=Measurement(now_ms, summary.samples_per_s, (), ()) if now_ms is not None else None,
            trials=rows,
            confirmation=None,
            plan=plan,
            redrawn=planning.redrawn(plan),
            noise=summary.noise or 0.0,
            wall_s=time.monotonic() - self._began,
            faults=run.processes.faults,
            notes=(*_notes(summary, untried, failed), *live.drift_note(drift)),
            blocks=tuple(run.blocks),
            live_guard=live.guard(run),
            live=True,
            saved_s=summary.saved_s,
            lost_s=summary.lost_s,
            lost_late_s=summary.lost_late_s,
            tried=bool(summary.kept)
            or any(row.pairs or row.verdict in FAIRLY for row in rows)
            or not untried,
            unmeasured=tuple(order.id for order in summary.kept if now_ms is None),
            interrupted=self.interrupted,
            micro_steps=summary.micro_steps,
        )


def _notes(summary: wire.LiveSummary, untried: list[str], failed: list[str]) -> list[str]:
    notes = []
    if summary.run_basis and summary.run_steps:
        steps = "optimizer steps" if summary.micro_steps else "steps"
        taken = f"{summary.run_steps:,} {steps}"
        notes.append(f"assumed length of the run: {taken} ({summary.run_basis})")
    if failed:
        notes.append(
            f"being tried when the program failed: {', '.join(failed)}; if it does not fail without"
            " them, `flatout tune` finds out which it is"
        )
    if untried:
        notes.append(
            f"not tried, since this run was too short: {', '.join(untried)}; `flatout tune` tries"
            " them in separate runs"
        )
    if summary.micro_steps:
        notes.append("measured per micro-step: an optimizer step of this program takes several")
    return notes
