"""One `flatout tune` from start to end: baseline, search, confirmation, plan."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path

from flatout.measuring import duel
from flatout.measuring.outcome import measured
from flatout.measuring.trial import Bench
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Observer
from flatout.nouns.trial import Guard, Measured
from flatout.nouns.tuned import Confirmation, Tuned
from flatout.probing.identity import identity
from flatout.running import footprint
from flatout.running.command import Command
from flatout.running.folder import ROOT
from flatout.running.process import end_all
from flatout.tuning import planning
from flatout.tuning.candidates import Choice, highest_risk
from flatout.tuning.confirm import confirmation
from flatout.tuning.search import Predict, Search

PAIRS = 5
NOISY = 0.25
"""Own noise of a program beyond which the user is told."""


@dataclass(frozen=True)
class Settings:
    """How long and how exactly."""

    budget_s: float = 600.0
    steps: int | None = None
    """Measured steps per trial; None: as many as a few seconds hold."""
    seed: int = 0
    pairs: int = PAIRS


def tune(
    command: Command,
    choice: Choice,
    settings: Settings,
    folder: Path,
    observer: Observer,
    predict: Predict | None = None,
) -> Tuned:
    """Find the plan. Raises UserError when the program itself cannot be measured.

    `predict`: from the program's profile to the speed-up that its findings let expect of boosts,
    for the order of the trials; None: the boosts' own rules of thumb.
    """
    began = time.monotonic()
    files = footprint.take(Path.cwd())
    bench = _bench(command, settings, folder)
    search = Search(bench, choice, observer, began + settings.budget_s, predict)
    notes: list[str] = []
    confirmed, best = _search_and_confirm(search, settings, notes)
    notes += _noise_told(search.noise)
    here = identity(search.facts.torch)
    return Tuned(
        command=command.display,
        machine=here,
        baseline=search.untouched_figures,
        best=best,
        trials=tuple(search.trials),
        confirmation=confirmed,
        plan=planning.plan(command, search, confirmed, here, best),
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


def _noise_told(noise: float) -> list[str]:
    if noise <= NOISY:
        return []
    return [
        f"two runs of the same program differed by {noise:.0%}: small gains cannot be seen here;"
        " stop other programs and tune again"
    ]


def seconds(text: str) -> float:
    """90, 90s, 10m, 1.5h in seconds. Raises UserError for anything else."""
    found = units.seconds(text)
    if not found:
        raise UserError(f"--budget {text!r} is not a time", "write it as 90s, 10m or 1h")
    return found


def _search_and_confirm(
    search: Search, settings: Settings, notes: list[str]
) -> tuple[Confirmation | None, Measured | None]:
    """Ctrl-C keeps the best so far, unconfirmed; before the first measurement it ends all."""
    try:
        search.baseline()
        search.profile()
        search.search()
        if search.kept:
            return _confirm(search, settings, notes)
    except KeyboardInterrupt:
        end_all(search.bench.folder)
        if search.incumbent is None:
            raise
        search.interrupted = True
        notes.append("interrupted: the best so far was not confirmed")
    return None, search.incumbent if search.kept else None


def _bench(command: Command, settings: Settings, folder: Path) -> Bench:
    own, root = folder.absolute(), ROOT.absolute()
    # Beside the runs, for the next tuning; where these could not be made, with this one.
    cache = (root if own.is_relative_to(root) else own) / "cache" / "inductor"
    bench = Bench(command, own, seed=settings.seed, compile_cache=cache)
    if settings.steps is None:
        return bench
    steps = max(3, settings.steps)
    return dataclasses.replace(bench, min_steps=steps, max_steps=steps, window_s=0.0)


def _confirm(
    search: Search, settings: Settings, notes: list[str]
) -> tuple[Confirmation | None, Measured | None]:
    """The duel; without a result when one of the two fails, with the reason in `notes`."""
    search.observer.phase("confirming: as written and with the plan, in turn")
    plan = tuple(search.kept)
    bench = _shorter_windows(search.bench, search.untouched_figures.step_ms / 1000)
    try:
        untouched, planned = duel.fight(
            bench,
            plan,
            search.facts,
            settings.pairs,
            search.duel_limit_s,
            _pair_told(search, settings.pairs),
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
