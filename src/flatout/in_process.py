"""`flatout.live()`: what `flatout run --live` does, in the process that calls it.

The agent starts in this process, and tells its records to the host's half here, which prints and
writes the same as for a process of its own. That happens in the program's own thread, between two
steps: no other thread is needed, and in a notebook a line belongs to the cell that trains.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.nouns.plan import Plan
from flatout.reporting import live as report
from flatout.reporting import terminal
from flatout.reporting.harmless import harmless, warn
from flatout.running import chosen, folder, summary
from flatout.running.command import Command
from flatout.running.process import write_orders
from flatout.running.records import Tail
from flatout.tuning import plan_file, plan_use
from flatout.tuning.live_run import LiveTuning
from flatout_agent import start, wire

PLAN = Path("flatout.toml")


def live(
    on: bool = True,
    *,
    plan: str | os.PathLike[str] | None = None,
    exact: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> LiveHere:
    """Tune the training of this process while it trains, as `flatout run --live` does.

    Call it anywhere before the loop: before or after torch is imported, and the model made. Lines
    go to stderr, and what is kept to flatout.toml, which the next call begins with. Without a
    training loop nothing happens. In a notebook each cell that trains is a run of its own.

    Everything is put back by `live(False)`, and at the end of a `with flatout.live():` block.

    Args:
        on: False puts back what an earlier call has switched on, and starts nothing.
        plan: apply this plan, and tune nothing.
        exact: leave out boosts that round.
        only: ids of boosts: no others.
        skip: ids of boosts: not these.

    Raises UserError for a boost that does not exist, and for a plan that cannot be used.
    """
    global _here
    if _here is not None:
        _here.end()
    asked = _Asked(Path(plan) if plan is not None else None, (exact, tuple(only), tuple(skip)))
    _here = LiveHere(asked if on and _may_start() else None)
    return _here


def _may_start() -> bool:
    if start.here_already():
        warn("this program was started by flatout: flatout.live() does nothing more")
        return False
    # Loader workers may import the main module again, and this line with it.
    return not multiprocessing.current_process().daemon


@dataclass(frozen=True)
class _Asked:
    plan: Path | None
    """Apply it and tune nothing; None: tune."""
    selection: tuple[bool, tuple[str, ...], tuple[str, ...]]
    """(exact alone, these alone, not these)"""


class LiveHere:
    """What `live` has begun, until `end`; a context manager that ends it."""

    def __init__(self, asked: _Asked | None) -> None:
        self._asked = asked
        self._run = _Run(asked) if asked is not None else None
        self._leave_cells = _after_each_cell(self._cell_ended) if asked is not None else _nothing

    def __enter__(self) -> LiveHere:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(interrupted=kind is not None and issubclass(kind, KeyboardInterrupt))

    def end(self, interrupted: bool = False) -> None:
        """Put everything back, write the plan and print the result; a second time it does nothing.

        interrupted: the training was, by Ctrl-C.
        """
        self._leave_cells()
        run, self._run = self._run, None
        if run is not None:
            run.end(interrupted)

    def _cell_ended(self, result: Any) -> None:
        """A cell of the notebook has ended: where it has trained, that was the run."""
        if self._run is not None and self._asked is not None and self._run.trained:
            with harmless("flatout.live() has ended"):
                self._run.end(isinstance(result.error_in_exec, KeyboardInterrupt))
                self._run = _Run(self._asked)


_here: LiveHere | None = None
_said: set[str] = set()


def _nothing() -> None:
    """There is nothing to leave."""


class _Run:
    """One run of the program: its records, its plan and what is said of it."""

    def __init__(self, asked: _Asked) -> None:
        path = Path.cwd() / (asked.plan or PLAN)
        there = asked.plan is not None or path.exists()
        self._plan, self._path = plan_file.read(path) if there else Plan(boosts=()), path
        self._tuning: LiveTuning | None = None
        if asked.plan is None:
            decided = report.on_decision(quiet=False)
            self._tuning = LiveTuning(self._plan, asked.selection, None, decided, terminal.say)
            self._boosts = self._tuning.boosts
        else:
            self._boosts = chosen.choose(self._plan.boosts, *asked.selection[1:])
        self._command, self._pid = _command(), os.getpid()
        self._warn_of_start()
        self._folder = folder.fresh("run")
        orders = wire.Orders(
            str(self._folder / "records"),
            chosen.orders(self._boosts),
            live=self._tuning.orders if self._tuning is not None else None,
            until_put_back=True,
        )
        write_orders(orders, self._folder)
        atexit.register(self._program_ends)  # before the agent does: it is to end first
        self._agent = start.InThisProcess(orders, self._heard)

    def _warn_of_start(self) -> None:
        """Say once which variables its boosts would need, and what differs from the plan."""
        with harmless("the plan was not compared with this machine"):
            warn_once = functools.partial(_once, warn)
            needed = plan_use.variables(self._plan, self._boosts, self._command, warn_once)
            for name, value in needed.items():
                if os.environ.get(name) != value:
                    line = f"export {name}={value}"
                    warn_once(f"only the start of Python can set this part of the plan: {line}")

    def _heard(self, record: wire.Record) -> None:
        if self._tuning is not None:
            with harmless("a line of the tuning is missing"):
                self._tuning.heard([(self._pid, record)])

    @property
    def trained(self) -> bool:
        """Whether the program has taken a step of training."""
        return self._agent.steps > 0

    def end(self, interrupted: bool) -> None:
        """Put everything back, and tell the result."""
        atexit.unregister(self._program_ends)
        with harmless("not everything was put back"):
            self._agent.put_back()
        self._close(interrupted)

    def _program_ends(self) -> None:
        if os.getpid() == self._pid:  # a fork runs this as well
            last = getattr(sys, "last_type", None)
            self._close(last is not None and issubclass(last, KeyboardInterrupt))

    def _close(self, interrupted: bool) -> None:
        records = tuple(Tail(self._folder / "records").new())
        ended = summary.run_end(records, [boost.id for boost in self._boosts])
        if not ended.steps:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        with harmless("the plan of this run is not written"):
            self._write_plan(interrupted)
        with harmless("this run has no summary"):
            torch = {record.version for _, record in records if isinstance(record, wire.TorchSeen)}
            then = self._plan.machine.torch if self._plan.machine else None
            terminal.run_ended(ended, then, torch, quiet=False)

    def _write_plan(self, interrupted: bool) -> None:
        """Write plan and report of a run that was tuned, and say what it has found."""
        if self._tuning is None:
            return
        self._tuning.interrupted = interrupted
        here = Path.cwd()
        path = self._path.relative_to(here) if self._path.is_relative_to(here) else self._path
        tuned = self._tuning.write_plan(self._command, path)
        if tuned is not None:
            report.close(tuned, self._folder / "report.html", quiet=False)
        for boost, lines in self._tuning.only_at_start().items():
            _once(
                terminal.say,
                f"{boost} was not tried, as only a start of Python can set it; to add it:",
            )
            for line in lines.splitlines():
                _once(terminal.say, f"  {line}")


def _once(tell: Callable[[str], None], line: str) -> None:
    if line not in _said:
        _said.add(line)
        tell(line)


def _command() -> Command:
    """What this process runs, as the words after `flatout run`; none where that is a notebook."""
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    words: tuple[str, ...] = ()
    if file is not None:
        words = ("-m", spec.name, *sys.argv[1:]) if spec is not None else tuple(sys.argv)
    script = Path(file) if file is not None else None
    return Command(tuple(sys.orig_argv), script, sys.executable, words)


def _after_each_cell(ended: Callable[[Any], None]) -> Callable[[], None]:
    """Call `ended` with the result of each cell of a notebook from now on; returns the way back."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return _nothing
    shell.events.register("post_run_cell", ended)

    def leave() -> None:
        if ended in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", ended)

    return leave
