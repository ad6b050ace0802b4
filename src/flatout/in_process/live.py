"""`flatout.live()`: what `flatout run --live` does, in the process that calls it.

The agent starts in this process, and tells its records to the host's half here, which prints and
writes the same as for a process of its own. That happens in the program's own thread, between two
steps: no other thread is needed, and in a notebook a line belongs to the cell that trains.
"""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.in_process import cells
from flatout.nouns.plan import Plan
from flatout.nouns.tuned import Tuned
from flatout.reporting import live as report
from flatout.reporting import terminal
from flatout.reporting.harmless import harmless, warn
from flatout.running.one import chosen_boosts, folder, summary
from flatout.running.one.command import Command
from flatout.running.one.records import Tail
from flatout.running.one.trial_process import write_orders
from flatout.tuning import plan_file, plan_use
from flatout.tuning.live_run import LiveTuning
from flatout_agent import wire
from flatout_agent.process import start

PLAN, REPORT = Path("flatout.toml"), "flatout-report.html"


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
    training loop nothing happens. In a notebook each cell that trains is a run of its own, and its
    result is shown under it.

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
    asked = Asked(Path(plan) if plan is not None else None, (exact, tuple(only), tuple(skip)))
    _here = LiveHere(asked if on and _may_start() else None)
    return _here


def was_called() -> bool:
    """Whether the program has called `live` itself, and said there what it wants."""
    return _here is not None


def is_on() -> bool:
    """Whether what `live` has begun goes on."""
    return _here is not None and _here.asked is not None


def set_aside() -> Callable[[], None]:
    """Put back for now what `live` has switched on; returns the way to begin again."""
    global _here
    before, asked = _here, _here.asked if _here is not None else None
    if before is not None:
        before.end()

    def begin_again() -> None:
        global _here
        if asked is not None and _here is before:
            _here = LiveHere(asked)

    return begin_again


def _may_start() -> bool:
    if start.here_already():
        warn("this program was started by flatout: flatout.live() does nothing more")
        return False
    # Loader workers may import the main module again, and this line with it.
    return not multiprocessing.current_process().daemon


@dataclass(frozen=True)
class Asked:
    """What `live` was asked for."""

    plan: Path | None = None
    """The plan to apply without tuning, or None to tune."""
    selection: tuple[bool, tuple[str, ...], tuple[str, ...]] = (False, (), ())
    """(exact alone, these alone, not these)"""


class LiveHere:
    """What `live` has begun, until `end`; a context manager that ends it."""

    def __init__(self, asked: Asked | None) -> None:
        self._asked = asked
        self._run = RunHere(asked) if asked is not None else None
        self._leave_cells = cells.follow(self._cell_changes) if asked is not None else lambda: None

    @property
    def asked(self) -> Asked | None:
        """The request, or None if there was none or it has ended."""
        return self._asked if self._run is not None else None

    def __repr__(self) -> str:
        return f"<flatout.live: {'off' if self.asked is None else 'on'}>"

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

    def _cell_changes(self, interrupted: bool) -> None:
        """A cell of the notebook has ended, or begins: where one has trained, that was the run."""
        if self._run is not None and self._asked is not None and self._run.over:
            with harmless("flatout.live() has ended"):
                self._run.end(interrupted)
                self._run = RunHere(self._asked)


_here: LiveHere | None = None
_said: set[str] = set()


class RunHere:
    """One run of the program: its records, its plan and what is said of it."""

    def __init__(self, asked: Asked) -> None:
        path = Path.cwd() / (asked.plan or PLAN)
        there = asked.plan is not None or path.exists()
        self._plan, self._path = plan_file.read(path, warn) if there else Plan(boosts=()), path
        self._tuning: LiveTuning | None = None
        cell = cells.output()
        # Of several processes that train together, the first one says it all.
        another_rank = os.environ.get("RANK", "0") not in ("", "0")
        self._shown = cell or report.LiveLines(quiet=another_rank)
        live_orders = None
        if asked.plan is None:
            say = terminal.say if cell is None else cell.say
            decided = self._shown.decision
            self._tuning = LiveTuning(self._plan, asked.selection, None, decided, say)
            self._boosts = self._tuning.boosts
            live_orders = self._tuning.orders
        else:
            self._boosts = chosen_boosts.choose(self._plan.boosts, *asked.selection[1:])
        self._command, self._pid = command(), os.getpid()
        self._warn_of_start()
        self._folder = folder.fresh("run")
        orders = wire.Orders(
            str(self._folder / "records"),
            chosen_boosts.orders(self._boosts),
            live=live_orders,
            until_put_back=True,
        )
        write_orders(orders, self._folder)
        atexit.register(self._program_ends)  # before the agent does: it is to end first
        self._agent = start.InThisProcess(orders, self._heard)

    def _warn_of_start(self) -> None:
        """Say once which variables its boosts would need, and what differs from the plan."""
        with harmless("the plan was not compared with this machine"):

            def warn_once(line: str) -> None:
                for new in _new([line]):
                    warn(new)

            needed = plan_use.variables(self._plan, self._boosts, self._command, warn_once)
            for name, value in needed.items():
                if os.environ.get(name) != value:
                    line = f"export {name}={value}"
                    warn_once(f"this part of the plan must be set before Python starts: {line}")

    def _heard(self, record: wire.Record) -> None:
        if self._tuning is not None:
            with harmless("a line of the tuning is missing"):
                self._tuning.heard([(self._pid, record)])

    @property
    def over(self) -> bool:
        """Whether the program has trained, and now executes something else."""
        return self._agent.steps > 0 and not self._agent.trains_elsewhere

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
        ended = dataclasses.replace(ended, interrupted=interrupted)
        if not ended.steps:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        tuned, lines = None, []
        with harmless("the plan of this run is not written"):
            tuned = self._write_plan(interrupted)
            waiting = self._tuning.only_at_start() if self._tuning is not None else {}
            untried = []
            for boost, needed in waiting.items():
                only = "only the start of a program can set it; to add it:"
                untried.append(f"{boost} was not tried: {only}")
                untried += [f"  {line}" for line in needed.splitlines()]
            lines = list(_new(untried))
        with harmless("this run has no summary"):
            torch = {record.version for _, record in records if isinstance(record, wire.TorchSeen)}
            then = self._plan.machine.torch if self._plan.machine else None
            terminal.other_torch(then, torch)
            self._shown.ended(ended, tuned, lines)

    def _write_plan(self, interrupted: bool) -> Tuned | None:
        """Write plan and report of a tuned run, or return None if nothing was measured."""
        if self._tuning is None:
            return None
        self._tuning.interrupted = interrupted
        here = Path.cwd()
        path = self._path.relative_to(here) if self._path.is_relative_to(here) else self._path
        tuned = self._tuning.write_plan(self._command, path, self._folder, warn)
        if tuned is None:
            return None
        page = self._folder / "report.html"
        tuned = report.close(tuned, page, quiet=True)
        return dataclasses.replace(tuned, report_path=str(cells.visible(page, REPORT)))


def _new(lines: Iterable[str]) -> Iterator[str]:
    """Those that were not said yet in this process."""
    for line in lines:
        if line not in _said:
            _said.add(line)
            yield line


def command() -> Command:
    """What this process runs, as the words after `flatout run`; none where that is a notebook."""
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    words: tuple[str, ...] = ()
    if file is not None:
        words = ("-m", spec.name, *sys.argv[1:]) if spec is not None else tuple(sys.argv)
    script = Path(file) if file is not None else None
    return Command(tuple(sys.orig_argv), script, sys.executable, words)
