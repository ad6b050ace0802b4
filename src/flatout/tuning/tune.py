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
from flatout.nouns.trial import Guard, Measured
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.probing.identity import identity
from flatout.running import footprint
from flatout.running.command import Command
from flatout.running.folder import ROOT
from flatout.running.process import end_all
from flatout.tuning import planning, starts, trials
from flatout.tuning.candidates import Choice, highest_risk
from flatout.tuning.confirm import confirmation, unclear
from flatout.tuning.trials import Found

PAIRS, MOST_PAIRS = 5, 11
WHOLE_PAIRS = 3
FIRST_BOOST_STEPS = 30
"""Steps that the guard and the fewest pairs of blocks of one boost take, where steps are long."""
NOISY = 0.25
"""Noise of the program against itself beyond which the user is told."""
CROWDED_SHARE = 0.4
"""Of a GPU's memory: tensors of this much, with what each process needs beside them, fill half."""
LEAST_CONFIRM_S = 60.0
"""The confirmation may overrun the budget by so much ..."""
COMPILE_S = 600.0
"""... and by so much more where the plan compiles; a hang may not."""


@dataclass(frozen=True)
class Settings:
    """How long and how exactly."""

    budget_s: float = 600.0
    steps: int | None = None
    """Measured steps of each window of the confirmation; None: as many as a second holds."""
    seed: int = 0
    pairs: int = PAIRS
    steps_left: int | None = None
    """Steps that a whole run takes, where the user knows."""


def tune(
    command: Command, choice: Choice, settings: Settings, folder: Path, observer: Observer
) -> Tuned:
    """Find the plan. Raises UserError when the program itself cannot be measured."""
    began = time.monotonic()
    deadline = began + settings.budget_s
    files = footprint.take(Path.cwd())
    bench = _bench(command, settings, folder)
    notes: list[str] = []
    try:
        found = trials.find(bench, choice, observer, deadline, settings.steps_left)
    except KeyboardInterrupt:
        end_all(bench.folder)
        raise
    found, confirmed, best = _finish(bench, found, choice, settings, observer, deadline, notes)
    notes += _notes(found, settings)
    here = identity(found.facts.torch)
    return Tuned(
        command=command.display,
        machine=here,
        baseline=_baseline(found, confirmed),
        best=best,
        trials=found.trials,
        confirmation=confirmed,
        plan=planning.plan(command, found, confirmed, here, settings.steps_left),
        noise=found.noise,
        wall_s=time.monotonic() - began,
        redirected=found.redirected,
        leaked=footprint.changed(files, footprint.take(Path.cwd())),
        faults=found.faults,
        interrupted=found.interrupted,
        notes=tuple(notes),
        blocks=found.blocks,
        live_guard=found.guard,
        tried=found.tried,
        needed_s=None if found.tried else _needed_s(found),
        run_folder=str(folder),
        micro_steps=found.micro_steps,
    )


def _finish(
    bench: Bench,
    found: Found,
    choice: Choice,
    settings: Settings,
    observer: Observer,
    deadline: float,
    notes: list[str],
) -> tuple[Found, Confirmation | None, Measured | None]:
    """What needs fresh processes: boosts of the start, and the confirmation. Ctrl-C ends them."""
    best = Measured(found.now_ms, None, (), ()) if found.kept and found.now_ms else None
    if found.interrupted:
        end_all(bench.folder)
        notes.append("interrupted: the best so far was not confirmed")
        return found, None, best
    try:
        found = planning.paying(found, settings.steps_left or found.run_steps)
        limit_s = max(LEAST_CONFIRM_S, deadline - time.monotonic())
        bench = _windows(bench, found, settings)
        rows, kept = starts.try_starts(bench, found, choice, observer, deadline, limit_s)
        told = {row.tried for row in rows}
        old = tuple(row for row in found.trials if row.tried not in told)
        found = dataclasses.replace(found, trials=(*old, *rows), kept=kept)
        if not kept:
            return found, None, None
        return found, *_confirm(bench, found, settings, observer, deadline, notes)
    except KeyboardInterrupt:
        end_all(bench.folder)
        notes.append("interrupted: the best so far was not confirmed")
        return dataclasses.replace(found, interrupted=True), None, best


def _bench(command: Command, settings: Settings, folder: Path) -> Bench:
    own, root = folder.absolute(), ROOT.absolute()
    # Beside the runs, for the next tuning; where these could not be made, with this one.
    cache = (root if own.is_relative_to(root) else own) / "cache" / "inductor"
    return Bench(command, own, seed=settings.seed, compile_cache=cache)


def _confirm(
    bench: Bench,
    found: Found,
    settings: Settings,
    observer: Observer,
    deadline: float,
    notes: list[str],
) -> tuple[Confirmation | None, Measured | None]:
    """The duel; of a program too short for it, whole runs; without either, what the pairs say."""
    observer.phase("confirming: as written and with the plan, in turn")
    plan, limit_s = found.kept, _confirm_limit_s(found, deadline)

    def done(pair: int, ratio: float | None) -> None:
        observer.confirming(pair, max(pair, settings.pairs), ratio)

    best = Measured(found.now_ms, None, (), ()) if found.now_ms else None
    try:
        untouched, planned = _duel(bench, found, settings, limit_s, deadline, done, notes)
    except duel.DuelFailedError as error:
        notes.append(f"not confirmed by fresh processes ({error}): the gains are its pairs'")
        return None, best
    guard = found.guard or _last_guard(found)
    result = confirmation(untouched, planned, guard, highest_risk(plan) == "semantics")
    return result, measured(planned.process, None) or best


def _last_guard(found: Found) -> Guard:
    """Where the program ended before all was compared together: what the last boost was told."""
    kept = {boost.id for boost in found.kept}
    guards = [row.guard for row in found.trials if row.tried in kept and row.guard is not None]
    nothing = Guard(True, "no boost acts on the model's calls", gradient_compared=False)
    return guards[-1] if guards else nothing


def _duel(
    bench: Bench,
    found: Found,
    settings: Settings,
    limit_s: float,
    deadline: float,
    done: duel.PairDone,
    notes: list[str],
) -> tuple[duel.Side, duel.Side]:
    """Windows in turn; whole runs in turn where the program is too short for them."""
    if not _too_short(found):
        try:
            return duel.fight(
                bench,
                found.kept,
                found.facts,
                settings.pairs,
                limit_s,
                done,
                most=max(MOST_PAIRS, settings.pairs),
                unclear=unclear,
            )
        except duel.EndedEarlyError:
            pass
    notes.append("the program is short: whole runs of it were compared")
    pairs = min(WHOLE_PAIRS, settings.pairs)
    enough_s = max(LEAST_CONFIRM_S, deadline - time.monotonic())
    return duel.whole_runs(bench, found.kept, found.facts, pairs, limit_s, done, enough_s)


def _too_short(found: Found) -> bool:
    """Whether a whole run of the program has no room for the windows of a duel."""
    if found.run_steps is None or found.now_ms is None:
        return False
    return found.run_steps * found.now_ms / 1000 < 2 * PAIRS


def _confirm_limit_s(found: Found, deadline: float) -> float:
    compiles = any(known.get(boost.id).compiles for boost in found.kept)
    least_s = max(LEAST_CONFIRM_S, 3 * found.run_s) + (COMPILE_S if compiles else 0.0)
    return max(deadline - time.monotonic(), least_s)


def _windows(bench: Bench, found: Found, settings: Settings) -> Bench:
    """Windows of a second: there are several on each side."""
    if settings.steps is not None:
        steps = max(3, settings.steps)
        return dataclasses.replace(
            bench, min_steps=steps, max_steps=steps, window_s=0.0, crowded=_crowded(found)
        )
    steps = max(3, math.ceil(0.5 / (found.written.step_ms / 1000)))
    return dataclasses.replace(
        bench, min_steps=min(bench.min_steps, steps), window_s=1.0, crowded=_crowded(found)
    )


def _crowded(found: Found) -> bool:
    """Whether two of the program, one of them suspended, may not fit into a GPU's memory."""
    if found.facts.device != "cuda" or found.written.peak_bytes is None:
        return False
    known_bytes = [gpu.memory_bytes for gpu in identity().gpus if gpu.memory_bytes]
    return found.written.peak_bytes > CROWDED_SHARE * min(known_bytes, default=math.inf)


def _baseline(found: Found, confirmed: Confirmation | None) -> Measured:
    """The program as written; its losses are those of the confirmation, where there is one."""
    losses = confirmed.untouched_losses if confirmed is not None else ()
    return dataclasses.replace(found.written, losses=losses)


def _needed_s(found: Found) -> float:
    """For a look at the program, the fewest pairs of one boost, and the confirmation."""
    steps = FIRST_BOOST_STEPS if found.written.step_ms > 500 else 1.5 * FIRST_BOOST_STEPS
    return (found.start_s + steps * found.written.step_ms / 1000) / (1 - trials.CONFIRM_SHARE)


def _notes(found: Found, settings: Settings) -> list[str]:
    notes = []
    if found.noise > NOISY:
        notes.append(
            f"neighbouring blocks of the program as written differed by {found.noise:.0%}: small"
            " gains cannot be seen here; stop other programs and tune again"
        )
    if found.micro_steps:
        notes.append("measured by micro-step: a step of this program is made of many")
    untried = [str(row.tried) for row in found.trials if row.left]
    if untried:
        notes.append(
            f"no time was left to try {', '.join(dict.fromkeys(untried))}: a longer --budget"
            " (or a program that trains longer) lets them have their turn"
        )
    return notes
