"""One `flatout tune` from start to end: baseline, search, confirmation, plan."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flatout.knowledge import boosts as known
from flatout.measuring import duel
from flatout.measuring.outcome import Outcome, measured
from flatout.measuring.trial import Bench
from flatout.nouns.errors import UserError
from flatout.nouns.machine import Machine
from flatout.nouns.observer import Observer
from flatout.nouns.plan import Plan
from flatout.nouns.trial import Guard, Measured
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.probing.machine import machine
from flatout.running import footprint
from flatout.running.command import Command, script_sha256
from flatout.tuning.candidates import Choice, highest_risk
from flatout.tuning.confirm import confirmation
from flatout.tuning.search import Search

PAIRS = 5
LOG_LINES = 12


@dataclass(frozen=True)
class Settings:
    """How long and how exactly."""

    budget_s: float = 600.0
    steps: int | None = None
    """Measured steps per trial; None: as many as a few seconds hold."""
    seed: int = 0
    pairs: int = PAIRS


def tune(
    command: Command, choice: Choice, settings: Settings, folder: Path, observer: Observer
) -> Tuned:
    """Find the plan. Raises UserError when the program itself cannot be measured."""
    began = time.monotonic()
    files = footprint.take(Path.cwd())
    bench = _bench(command, settings, folder)
    search = Search(bench, choice, observer, deadline=began + settings.budget_s)
    confirmed: Confirmation | None = None
    best: Measured | None = None
    notes: list[str] = []
    try:
        outcome = search.baseline()
        if outcome.measured is None:
            raise _cannot_measure(outcome)
        search.search()
        if search.kept:
            confirmed, best = _confirm(bench, search, settings, notes)
    except KeyboardInterrupt:
        if search.incumbent is None:
            raise
        search.interrupted = True
        notes.append("interrupted: the best so far was not confirmed")
    here = machine(search.untouched.rank.torch if search.untouched and search.untouched.rank else None)
    return Tuned(
        command=command.display,
        machine=here,
        baseline=search.untouched.measured,  # type: ignore[union-attr, arg-type]
        best=best,
        trials=tuple(search.trials),
        confirmation=confirmed,
        plan=_plan(command, search, confirmed, here, best),
        noise=search.noise,
        wall_s=time.monotonic() - began,
        deterministic=search.deterministic,
        redirected=tuple(search.redirected),
        leaked=footprint.changed(files, footprint.take(Path.cwd())),
        faults=tuple(search.faults),
        interrupted=search.interrupted,
        notes=tuple(notes),
        run_folder=str(folder),
    )


def _bench(command: Command, settings: Settings, folder: Path) -> Bench:
    bench = Bench(command, folder.absolute(), seed=settings.seed)
    if settings.steps is None:
        return bench
    steps = max(3, settings.steps)
    return dataclasses.replace(bench, min_steps=steps, max_steps=steps, window_s=0.0)


def _confirm(
    bench: Bench, search: Search, settings: Settings, notes: list[str]
) -> tuple[Confirmation | None, Measured | None]:
    """The duel; without a result when one of the two fails, with the reason in `notes`."""
    search.observer.phase("confirming: as written and with the plan, in turn")
    plan = tuple(search.kept)
    steady = search.untouched.measured.step_ms / 1000  # type: ignore[union-attr]
    bench = _shorter_windows(bench, steady)
    limit_s = max(300.0, 6 * search.untouched.wall_s) + 600.0  # type: ignore[union-attr]
    try:
        untouched, planned = duel.fight(
            bench, plan, search.facts, settings.pairs, limit_s, _pair_told(search, settings.pairs)
        )
    except duel.DuelFailedError as error:
        notes.append(f"not confirmed: {error}")
        return None, search.incumbent
    guard = search.incumbent_trial.guard if search.incumbent_trial is not None else None
    guard = guard or Guard(passed=False, reason="no trial had the whole plan on")
    result = confirmation(untouched, planned, guard, highest_risk(plan) == "semantics")
    return result, measured(planned.rank, None) or search.incumbent


def _shorter_windows(bench: Bench, step_s: float) -> Bench:
    """Windows of the duel are shorter than a trial's, since there are several on each side."""
    if bench.window_s == 0.0:
        return bench
    steps = max(3, min(bench.min_steps, math.ceil(bench.window_s / step_s / 2)))
    return dataclasses.replace(bench, min_steps=steps, window_s=bench.window_s / 2)


def _pair_told(search: Search, pairs: int) -> duel.PairDone:
    return lambda pair, ratio: search.observer.confirming(pair, pairs, ratio)


def _plan(
    command: Command,
    search: Search,
    confirmed: Confirmation | None,
    here: Machine,
    best: Measured | None,
) -> Plan | None:
    """The plan, unless it is not faster or does not learn the same."""
    if not search.kept:
        return None
    if confirmed is not None and (confirmed.interval[0] <= 1.0 or not confirmed.guard.passed):
        return None
    if confirmed is None and not search.interrupted:
        return None
    pays, compile_s = _pays_after(search, best or search.incumbent)
    return Plan(
        boosts=tuple(search.kept),
        command=command.display,
        script_sha256=script_sha256(command.script),
        job=dataclasses.asdict(search.facts),
        machine=here,
        speedup=confirmed.speedup if confirmed is not None else None,
        speedup_interval=confirmed.interval if confirmed is not None else None,
        pairs=confirmed.pairs if confirmed is not None else None,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pays_after_steps=pays,
        compile_s=compile_s,
    )


def _pays_after(search: Search, best: Measured | None) -> tuple[int | None, float | None]:
    """(steps until the compile time is won back, that time); None where nothing is compiled."""
    compiled = [row for row in search.trials if row.tried and row.measured is not None
                and known.get(row.tried).compiles and row.verdict == "kept"]  # fmt: skip
    if not compiled or best is None or search.untouched is None:
        return None, None
    assert search.untouched.measured is not None
    assert compiled[0].measured is not None
    compile_s = compiled[0].measured.compile_s
    won_ms = search.untouched.measured.step_ms - best.step_ms
    return (math.ceil(1000 * compile_s / won_ms) if won_ms > 0 else None), compile_s


def _cannot_measure(outcome: Outcome) -> UserError:
    """Say what the program did instead of training."""
    tail = _tail(outcome.log)
    if not outcome.agent_seen:
        return UserError(
            "no Python process under this command loaded flatout's agent"
            " (python -I, -E and -S ignore PYTHONPATH)" + tail,
            "start the script without these options, or name the Python that runs it: --python",
        )
    if outcome.rank is None:
        what = "imported torch but took no optimizer step" if outcome.torch_seen else (
            "never imported torch")  # fmt: skip
        how = f", exit code {outcome.returncode}" if outcome.returncode else ""
        if outcome.error and "stopped after" in outcome.error:
            how = f"; {outcome.error}"
        return UserError(
            f"the program {what}{how}{tail}", "run it by itself first: it must train", 1
        )
    return UserError(
        f"the program as written cannot be measured: {outcome.error}{tail}",
        f"its whole output: {outcome.log}",
        1,
    )


def _tail(log: str) -> str:
    from flatout.running.process import log_tail

    lines = log_tail(Path(log), LOG_LINES)
    return "".join(f"\n  | {line}" for line in lines)
