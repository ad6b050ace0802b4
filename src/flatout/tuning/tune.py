"""One `flatout tune` from start to end: boosts in running programs, confirmation, plan."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path

from flatout.knowledge import boosts as known
from flatout.measuring import duel
from flatout.measuring.outcome import measured
from flatout.measuring.trial import Bench
from flatout.nouns.observer import Observer
from flatout.nouns.trial import Guard, Measurement
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.probing.identity import identity
from flatout.running import footprint
from flatout.running.command import Command
from flatout.running.folder import ROOT
from flatout.running.process import end_all
from flatout.tuning import planning, starts, trials
from flatout.tuning.candidates import Allowance, highest_risk
from flatout.tuning.confirm import confirmation, unclear
from flatout.tuning.trials import Found

PAIRS, MOST_PAIRS = 5, 11
WHOLE_PAIRS = 3
FIRST_BOOST_STEPS = 30
"""Steps that the guard and the fewest pairs of blocks of one boost take, where steps are long."""
NOISY = 0.25
"""Noise of the program against itself above which the user is warned."""
CROWDED_SHARE = 0.4
"""Share of a GPU's memory: tensors of that size and the overhead of a process fill half of it."""
LEAST_CONFIRM_S = 60.0
"""The confirmation may overrun the budget by this much ..."""
COMPILE_S = 600.0
"""... and by this much more where the plan compiles."""


@dataclass(frozen=True)
class TuneSettings:
    """How long and how exactly."""

    budget_s: float = 600.0
    steps: int | None = None
    """Measured steps of each window of the confirmation; None: as many as a second holds."""
    seed: int = 0
    pairs: int = PAIRS
    steps_left: int | None = None
    """Steps that a whole run takes, where the user knows."""


def tune(
    command: Command, choice: Allowance, settings: TuneSettings, folder: Path, observer: Observer
) -> Tuned:
    """Find the plan. Raises UserError when the program itself cannot be measured."""
    began = time.monotonic()
    deadline = began + settings.budget_s
    files = footprint.take(Path.cwd())
    bench = _bench(command, settings, folder)
    notes: list[str] = []
    try:
        search = trials.find(bench, choice, observer, deadline, settings.steps_left)
    except KeyboardInterrupt:
        end_all(bench.folder)
        raise
    search, confirmed, best = _finish(bench, search, choice, settings, observer, deadline, notes)
    notes += _notes(search, settings)
    machine = identity(search.facts.torch)
    return Tuned(
        command=command.display,
        machine=machine,
        baseline=_baseline(search, confirmed),
        best=best,
        trials=search.trials,
        confirmation=confirmed,
        plan=planning.plan(command, search, confirmed, machine, settings.steps_left),
        noise=search.noise,
        wall_s=time.monotonic() - began,
        redirected=search.redirected,
        leaked=footprint.changed(files, footprint.take(Path.cwd())),
        faults=search.faults,
        interrupted=search.interrupted,
        notes=tuple(notes),
        blocks=search.blocks,
        live_guard=search.guard,
        tried=search.tried,
        needed_s=None if search.tried else _needed_s(search),
        run_folder=str(folder),
        micro_steps=search.micro_steps,
    )


def _finish(
    bench: Bench,
    search: Found,
    choice: Allowance,
    settings: TuneSettings,
    observer: Observer,
    deadline: float,
    notes: list[str],
) -> tuple[Found, Confirmation | None, Measurement | None]:
    """What needs fresh processes: boosts of the start, and the confirmation. Ctrl-C ends them."""
    best = Measurement(search.now_ms, None, (), ()) if search.kept and search.now_ms else None
    if search.interrupted:
        end_all(bench.folder)
        notes.append("interrupted: the best result so far was not confirmed")
        return search, None, best
    try:
        search = planning.paying(search, settings.steps_left or search.run_steps)
        limit_s = max(LEAST_CONFIRM_S, deadline - time.monotonic())
        bench = _windows(bench, search, settings)
        rows, boosts = starts.try_starts(bench, search, choice, observer, deadline, limit_s)
        tried_ids = {row.tried for row in rows}
        others = tuple(row for row in search.trials if row.tried not in tried_ids)
        search = dataclasses.replace(search, trials=(*others, *rows), kept=boosts)
        if not boosts:
            return search, None, None
        return search, *_confirm(bench, search, settings, observer, deadline, notes)
    except KeyboardInterrupt:
        end_all(bench.folder)
        notes.append("interrupted: the best result so far was not confirmed")
        return dataclasses.replace(search, interrupted=True), None, best


def _bench(command: Command, settings: TuneSettings, folder: Path) -> Bench:
    run_folder, root = folder.absolute(), ROOT.absolute()
    # Beside the runs, for the next tuning; where these could not be made, with this one.
    cache = (root if run_folder.is_relative_to(root) else run_folder) / "cache" / "inductor"
    return Bench(command, run_folder, seed=settings.seed, compile_cache=cache)


def _confirm(
    bench: Bench,
    search: Found,
    settings: TuneSettings,
    observer: Observer,
    deadline: float,
    notes: list[str],
) -> tuple[Confirmation | None, Measurement | None]:
    """A duel, or whole runs of a program too short for one; failing both, the pairs' own gains."""
    observer.phase("confirming: runs as written and with the plan, in turn")
    plan, limit_s = search.kept, _confirm_limit_s(search, deadline)

    def on_pair(pair: int, ratio: float | None) -> None:
        observer.confirming(pair, max(pair, settings.pairs), ratio)

    best = Measurement(search.now_ms, None, (), ()) if search.now_ms else None
    try:
        untouched, planned = _duel(bench, search, settings, limit_s, deadline, on_pair, notes)
    except duel.DuelFailedError as error:
        notes.append(
            f"not confirmed in fresh processes ({error}): the gains are those of a single run"
        )
        return None, best
    guard = search.guard or _last_guard(search)
    result = confirmation(untouched, planned, guard, highest_risk(plan) == "semantics")
    return result, measured(planned.process, None) or best


def _last_guard(search: Found) -> Guard:
    """The verdict on the last kept boost, where the program ended before all were compared."""
    boost_ids = {boost.id for boost in search.kept}
    guards = [
        row.guard for row in search.trials if row.tried in boost_ids and row.guard is not None
    ]
    no_guard = Guard(True, "no boost acts on the model's calls", gradient_compared=False)
    return guards[-1] if guards else no_guard


def _duel(
    bench: Bench,
    search: Found,
    settings: TuneSettings,
    limit_s: float,
    deadline: float,
    on_pair: duel.PairDone,
    notes: list[str],
) -> tuple[duel.Side, duel.Side]:
    """Windows in turn; whole runs in turn where the program is too short for them."""
    if not _too_short(search):
        try:
            return duel.fight(
                bench,
                search.kept,
                search.facts,
                settings.pairs,
                limit_s,
                on_pair,
                most=max(MOST_PAIRS, settings.pairs),
                unclear=unclear,
            )
        except duel.EndedEarlyError:
            pass
    notes.append("the program is short: whole runs were compared")
    pairs = min(WHOLE_PAIRS, settings.pairs)
    pairs_s = max(LEAST_CONFIRM_S, deadline - time.monotonic())
    return duel.whole_runs(bench, search.kept, search.facts, pairs, limit_s, on_pair, pairs_s)


def _too_short(search: Found) -> bool:
    """Whether a whole run of the program has no room for the windows of a duel."""
    if search.run_steps is None or search.now_ms is None:
        return False
    return search.run_steps * search.now_ms / 1000 < 2 * PAIRS


def _confirm_limit_s(search: Found, deadline: float) -> float:
    compiles = any(known.get(boost.id).compiles for boost in search.kept)
    least_s = max(LEAST_CONFIRM_S, 3 * search.run_s) + (COMPILE_S if compiles else 0.0)
    return max(deadline - time.monotonic(), least_s)


def _windows(bench: Bench, search: Found, settings: TuneSettings) -> Bench:
    """Windows of about a second: each side has several."""
    if settings.steps is not None:
        steps = max(3, settings.steps)
        return dataclasses.replace(
            bench, min_steps=steps, max_steps=steps, window_s=0.0, crowded=_crowded(search)
        )
    steps = max(3, math.ceil(0.5 / (search.written.step_ms / 1000)))
    return dataclasses.replace(
        bench, min_steps=min(bench.min_steps, steps), window_s=1.0, crowded=_crowded(search)
    )


def _crowded(search: Found) -> bool:
    """Whether two of the program, one of them suspended, may not fit into a GPU's memory."""
    if search.facts.device != "cuda" or search.written.peak_bytes is None:
        return False
    known_bytes = [gpu.memory_bytes for gpu in identity().gpus if gpu.memory_bytes]
    return search.written.peak_bytes > CROWDED_SHARE * min(known_bytes, default=math.inf)


def _baseline(search: Found, confirmed: Confirmation | None) -> Measurement:
    """The program as written; its losses are those of the confirmation, where there is one."""
    losses = confirmed.untouched_losses if confirmed is not None else ()
    return dataclasses.replace(search.written, losses=losses)


def _needed_s(search: Found) -> float:
    """Time to look at the program, to measure one boost with the fewest pairs, and to confirm."""
    steps = FIRST_BOOST_STEPS if search.written.step_ms > 500 else 1.5 * FIRST_BOOST_STEPS
    return (search.start_s + steps * search.written.step_ms / 1000) / (1 - trials.CONFIRM_SHARE)


def _notes(search: Found, settings: TuneSettings) -> list[str]:
    notes = []
    if search.noise > NOISY:
        notes.append(
            f"neighbouring blocks of the program as written differed by {search.noise:.0%}: small"
            " gains cannot be measured on this machine now; stop other programs and tune again"
        )
    if search.micro_steps:
        notes.append("measured per micro-step: an optimizer step of this program takes several")
    untried = [str(row.tried) for row in search.trials if row.left]
    if untried:
        notes.append(
            f"there was no time to try {', '.join(dict.fromkeys(untried))}: give a longer --budget"
            " or let the program train longer"
        )
    return notes
