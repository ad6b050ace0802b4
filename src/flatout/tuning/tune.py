"""One `flatout tune` from start to end: boosts in running programs, confirmation, plan."""

from __future__ import annotations

import dataclasses
import math
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.knowledge import boosts as known
from flatout.measuring import duel, live, trial
from flatout.measuring.outcome import measured
from flatout.measuring.trial import Bench
from flatout.nouns import units
from flatout.nouns.observer import Observer
from flatout.nouns.trial import Guard, Measurement
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.probing.identity import identity
from flatout.running.one import footprint, standard_input
from flatout.running.one.command import Command
from flatout.running.one.folder import compile_cache
from flatout.running.one.trial_process import end_all
from flatout.tuning import planning, starts, trials
from flatout.tuning.candidates import Allowance
from flatout.tuning.confirm import (
    as_redrawn,
    confirmation,
    losses_differ,
    redraws,
    unclear,
    unclear_runs,
)
from flatout.tuning.losses import MOST_LOSSES, loss_sigma
from flatout.tuning.trials import Found
from flatout_agent import wire

PAIRS, MOST_PAIRS = 2, 11
MARGIN_S = 0.7
"""Seconds of the budget kept for the report and the end: the budget is a promise."""
OWN_RUNS = 3
"""Number of runs as written with other random numbers, if these may be why the plan's losses are
off."""
FEWEST_OWN, SLOWER = 10, 1.5
"""Such a run has at least so many steps; each may take so many times what it took in the duel."""
WORTH = 1.05
"""A boost that promises less is not listed among those for which there was no time."""
NOISY = 0.25
"""Noise of the program against itself above which the user is warned."""
BETWEEN = 0.2
"""Share of a program's time between its steps from which on it is told."""
CROWDED_SHARE = 0.4
"""Share of a GPU's memory: such tensors and the overhead of a process fill half of it."""


@dataclass(frozen=True)
class TuneSettings:
    """The duration and the exactness."""

    budget_s: float = 600.0
    steps: int | None = None
    """Measured steps of each window of the confirmation, or None for one second's worth."""
    seed: int = 0
    pairs: int = PAIRS
    steps_left: int | None = None
    """Steps of a whole run, if the user knows."""


def tune(
    command: Command, choice: Allowance, settings: TuneSettings, folder: Path, observer: Observer
) -> Tuned:
    """Find the plan. Raises UserError if the program itself cannot be measured."""
    try:
        return _tune(command, choice, settings, folder, observer)
    finally:  # what the program saved in its trials: its checkpoints may take gigabytes
        for scratch in list(folder.rglob("scratch")):
            shutil.rmtree(scratch, ignore_errors=True)


def _tune(
    command: Command, choice: Allowance, settings: TuneSettings, folder: Path, observer: Observer
) -> Tuned:
    began = time.monotonic()
    deadline = began + settings.budget_s - MARGIN_S
    files = footprint.take(Path.cwd())
    run_folder = folder.absolute()
    given = standard_input.given(command, folder)
    bench = Bench(given, run_folder, settings.seed, compile_cache=compile_cache(run_folder))
    notes: list[str] = []
    try:
        search = trials.find(
            bench, choice, observer, deadline, settings.steps_left, settings.budget_s
        )
    except KeyboardInterrupt:
        end_all(bench.folder)
        raise
    search, confirmed, best = _finish(bench, search, choice, settings, observer, deadline, notes)
    notes += live.drift_note(_written_ms(search, confirmed))
    notes += _notes(search, settings)
    losses = confirmed.untouched_losses if confirmed is not None else ()
    machine = identity(search.facts.torch)
    plan = planning.plan(command, search, confirmed, machine, settings.steps_left)
    return Tuned(
        command=command.display,
        machine=machine,
        baseline=dataclasses.replace(search.written, losses=losses),
        best=best,
        trials=search.trials,
        confirmation=confirmed,
        plan=plan,
        redrawn=planning.redrawn(plan),
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
    """The part that needs fresh processes: start boosts and confirmation. Ctrl-C ends them."""
    best = Measurement(search.now_ms, None, (), ()) if search.kept and search.now_ms else None
    confirmed: Confirmation | None = None
    if search.interrupted:
        end_all(bench.folder)
        notes.append("interrupted: the best result so far was not confirmed")
        return search, None, best
    try:
        search = planning.paying(search, settings.steps_left or search.run_steps)
        bench = _windows(bench, search, settings)
        spare_s = deadline - _confirmation_s(search)
        rows, boosts = starts.try_starts(bench, search, choice, observer, spare_s)
        tried_ids = {row.tried for row in rows}
        others = tuple(row for row in search.trials if row.tried not in tried_ids)
        gains = [boost.gain or 1.0 for boost in boosts if boost not in search.kept]
        now_ms = search.now_ms / math.prod(gains) if search.now_ms else None
        search = dataclasses.replace(search, trials=(*others, *rows), kept=boosts, now_ms=now_ms)
        if not boosts:
            return search, None, None
        try:
            confirmed, fastest, written = _confirm(
                bench, search, settings, observer, deadline, notes
            )
        except duel.DuelFailedError as error:
            notes.append(f"A/B runs refused the plan: the program fails with it: {error}")
            return planning.failed(search, str(error)), None, None
        confirmed = _with_own_noise(bench, search, confirmed, written, deadline)
        second = planning.second_choice(search, confirmed) if confirmed is not None else None
        if second is None or deadline - time.monotonic() < _confirmation_s(second):
            return search, confirmed, fastest
        try:
            again, fastest_again, written = _confirm(
                bench, second, settings, observer, deadline, [], "second"
            )
        except duel.DuelFailedError:
            return search, confirmed, fastest
        again = _with_own_noise(bench, second, again, written, deadline, "second")
        if again is None or not planning.holds(second, again):
            return search, confirmed, fastest
        left_out = ", ".join(boost.id for boost in search.kept if boost not in second.kept)
        notes.append(f"A/B runs refused the plan with {left_out}; the plan is the rest")
        return second, again, fastest_again
    except KeyboardInterrupt:
        end_all(bench.folder)
        if confirmed is None:
            notes.append("interrupted: the best result so far was not confirmed")
        return dataclasses.replace(search, interrupted=True), confirmed, best


def _confirm(
    bench: Bench,
    search: Found,
    settings: TuneSettings,
    observer: Observer,
    deadline: float,
    notes: list[str],
    name: str = "duel",
) -> tuple[Confirmation | None, Measurement | None, duel.Side | None]:
    """A duel, or whole runs of a program too short for one; failing both, the pairs' own gains.

    Also returns the program as written in it. name: begins the names of its processes. Raises
    DuelFailedError if the program fails with the plan and not as written.
    """
    best = Measurement(search.now_ms, None, (), ()) if search.now_ms else None
    if deadline - time.monotonic() < wire.ENOUGH_TO_CONFIRM * _confirmation_s(search):
        notes.append("the budget left no time for A/B runs: the gain is that between steps")
        return None, best, None
    observer.phase("confirming: runs as written and with the plan, in turn")
    try:
        untouched, planned = _duel(
            bench, search, settings, deadline, observer.confirming, notes, name
        )
    except duel.DuelFailedError as error:
        if error.of_plan:
            raise
        notes.append(f"measured between steps, not confirmed in fresh processes: {error}")
        return None, best, None
    guard = search.guard or _last_guard(search)
    result = confirmation(untouched, planned, guard)
    if result.speedup > 1:
        notes += between_steps_note(untouched, planned)
    fastest = (None if result.disturbed else measured(planned.process, None)) or best
    return result, fastest, untouched


def between_steps_note(untouched: duel.Side, planned: duel.Side) -> list[str]:
    """How much faster the program is, if much of its time passes between the steps."""
    written_ms, plan_ms = (statistics.median(side.windows_ms) for side in (untouched, planned))
    whole_ms = untouched.whole_ms or written_ms
    share = 1 - written_ms / whole_ms
    if share < BETWEEN:
        return []
    gain = units.ratio(whole_ms / (whole_ms - written_ms + plan_ms))
    return [
        f"{share:.0%} of the program's time as written is not in training steps (evaluation,"
        f" rollouts): the whole of it is about {gain} faster"
    ]


def _with_own_noise(
    bench: Bench,
    search: Found,
    confirmed: Confirmation | None,
    untouched: duel.Side | None,
    deadline: float,
    name: str = "duel",
) -> Confirmation | None:
    """The confirmation; losses that differ pass if other random numbers alone do as much."""
    if confirmed is None or untouched is None:
        return confirmed
    if not losses_differ(confirmed.guard):
        return confirmed
    own = _own_sigmas(bench, search, untouched, deadline, name)
    guard = as_redrawn(confirmed.guard, own, redraws(search.kept, search.facts))
    return dataclasses.replace(confirmed, guard=guard)


def _own_sigmas(
    bench: Bench, search: Found, untouched: duel.Side, deadline: float, name: str
) -> list[float]:
    """How far other random numbers alone move the losses: in the duel's runs, or in others.

    These take no more steps than there is time for: one that is cut off tells nothing.
    """
    redrawn = list(untouched.redrawn)
    step_s, took_s = SLOWER * statistics.median(untouched.windows_ms) / 1000, 0.0
    for number in range(len(redrawn) + 1, OWN_RUNS + 1):
        began = time.monotonic()
        left_s = deadline - began
        affordable = int((left_s - search.start_s) / step_s)
        steps = min(len(untouched.losses), MOST_LOSSES, affordable)
        if left_s < took_s or steps < FEWEST_OWN:
            break
        orders: dict[str, Any] = {"min_steps": steps, "max_steps": steps, "window_s": 0.0}
        folder = f"{name}-redrawn-{number}"
        outcome = trial.run(bench, folder, (), None, left_s, reseed=number, **orders)
        took_s = time.monotonic() - began
        if outcome.process is not None:
            redrawn.append(outcome.process.losses)
    sigmas = [loss_sigma(losses, untouched.losses, 0) for losses in redrawn]
    return [sigma for sigma in sigmas if sigma is not None]


def _confirmation_s(search: Found) -> float:
    """The least seconds that the confirmation takes."""
    return wire.confirmation_s(search.start_s, search.step_s, search.run_steps)


def _last_guard(search: Found) -> Guard:
    """The verdict on the last kept boost if the program ended before all were compared."""
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
    deadline: float,
    on_pair: duel.PairDone,
    notes: list[str],
    name: str,
) -> tuple[duel.Side, duel.Side]:
    """Windows in turn, or whole runs in turn if the program is too short for them."""
    most = max(MOST_PAIRS, settings.pairs)
    what = bench, search.kept, search.facts, settings.pairs
    # A whole run of the program may be too short for the windows of a duel.
    if search.run_steps is None or search.run_steps * search.step_s >= wire.SHORT_S:
        left_s = deadline - time.monotonic()
        try:
            return duel.fight(*what, left_s, on_pair, most=most, unclear=unclear, name=name)
        except duel.EndedEarlyError as error:
            if error.failed:
                raise
    notes.append("the program is short: whole runs were compared")
    left_s = deadline - time.monotonic()
    name = f"{name}-whole"
    return duel.whole_runs(*what, left_s, on_pair, most=most, unclear=unclear_runs, name=name)


def _windows(bench: Bench, search: Found, settings: TuneSettings) -> Bench:
    """Windows of about a second; each side has several."""
    if settings.steps is not None:
        steps = max(3, settings.steps)
        return dataclasses.replace(
            bench, min_steps=steps, max_steps=steps, window_s=0.0, crowded=_crowded(search)
        )
    return dataclasses.replace(bench.with_windows(1000 * search.step_s), crowded=_crowded(search))


def _crowded(search: Found) -> bool:
    """Whether two copies, one of them suspended, may not fit into a GPU's memory."""
    if search.facts.device != "cuda" or search.written.peak_bytes is None:
        return False
    known_bytes = [gpu.memory_bytes for gpu in identity().gpus if gpu.memory_bytes]
    return search.written.peak_bytes > CROWDED_SHARE * min(known_bytes, default=math.inf)


def _written_ms(search: Found, confirmed: Confirmation | None) -> dict[str, float | None]:
    """The step times of the program as written, or None if unknown, by when they were measured."""
    first = next((row.measured for row in search.trials if row.reason == live.AS_WRITTEN), None)
    found_ms = {
        "at first": first.step_ms if first is not None else None,
        "after the search": search.written.step_ms,
    }
    if confirmed is None or not confirmed.untouched_ms or search.micro_steps:
        return found_ms  # if of micro-steps, the A/B runs count other ones
    return {**found_ms, "in A/B runs": statistics.fmean(confirmed.untouched_ms)}


def _notes(search: Found, settings: TuneSettings) -> list[str]:
    notes = []
    if search.noise > NOISY:
        notes.append(
            f"neighbouring blocks of the program as written differed by {search.noise:.0%}: small"
            " gains cannot be measured on this machine now; stop other programs and tune again"
        )
    if search.micro_steps:
        notes.append("measured per micro-step: an optimizer step of this program takes several")
    return [*notes, *untried_notes(search)]


def untried_notes(search: Found) -> list[str]:
    """Promising boosts that were not compared because the program is too short."""
    boosts = [
        row.tried
        for row in search.trials
        if row.tried is not None
        and row.why_untried == "program_ended"
        and not row.pairs
        and known.get(row.tried).promise(search.facts, row.params) >= WORTH
    ]
    names = ", ".join(dict.fromkeys(boosts))
    return (
        [f"the program ended before {names} could be tried: let it train longer"] if names else []
    )
