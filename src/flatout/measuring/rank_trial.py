"""Run one trial of several ranks: throw-away processes that train the user's program together.

Rank 0 ends its measured window by itself, as in every trial. The others train until they are ended,
since a rank that ended earlier would leave rank 0 waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.knowledge import boosts as known
from flatout.measuring.outcome import measured
from flatout.measuring.trial import OWN_EXIT_S, POLL_S, QUIET_EXIT_S, Bench, why_unmeasured
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.trial import Measurement
from flatout.running.one import environment
from flatout.running.one.records import Process, Processes
from flatout.running.one.trial_process import LOG, TrialProcess, write_orders
from flatout.running.ranks.layout import RankLayout
from flatout_agent import wire

ENDLESS = 10**9
STORE = "store"
NATIVE_ENDS_S = 10.0
"""Seconds in which all ranks of a program that divides its work itself report their losses."""


@dataclass(frozen=True)
class RankOutcome:
    """One finished trial of several ranks."""

    measured: Measurement | None
    """Figures of rank 0."""
    ranks: wire.RanksSeen | None
    refused: wire.RanksRefused | None
    error: str | None
    """Why there is no measurement, in one line."""
    log: str
    """The log of the rank that tells why, or of rank 0."""


def run(
    bench: Bench,
    layout: RankLayout,
    boosts: tuple[PlannedBoost, ...],
    facts: wire.JobFacts | None,
    limit_s: float,
) -> RankOutcome:
    """The trial from start to end. A crash, a hang or a refusal is an outcome too."""
    layout = layout.begun()
    # No two trials of one program share a folder.
    kind = "rounding" if layout.rounding else "ranks" if layout.native is None else "native"
    folder = bench.folder / f"{kind}-{layout.size}"
    deadline = time.monotonic() + limit_s
    processes = Processes()
    with ExitStack() as stack:
        programs = [
            stack.enter_context(_started(bench, folder, layout, rank, boosts, facts))
            for rank in range(layout.size)
        ]
        late = _follow(programs, processes, deadline)
        if layout.native is not None and not late:
            ends_at = time.monotonic() + NATIVE_ENDS_S
            for program in programs:  # they end after the same step
                program.wait(max(0.0, ends_at - time.monotonic()))
            _collect(programs[0], processes)
        failed = [program for program in programs if program.returncode]
        killed = [program for program in failed if (program.returncode or 0) < 0]
        first = next(iter([*killed, *failed, *programs]))
        peak = programs[0].memory_bytes()
        leading = _rank_0(processes)
        steps = leading.step_count if leading is not None else 0
        error = why_unmeasured(first, late, limit_s, first.returncode, steps)
    refused = next((process.refused for process in processes.all if process.refused), None)
    figures = None
    if leading is not None and leading.ended is not None and refused is None:
        figures = measured(leading, peak, 1 if layout.native is None else layout.size)
        if figures is not None and layout.native is not None:  # each has a part of the work
            figures = replace(figures, losses=mean_losses(processes.training, layout.size))
    seen = [process.ranks for process in processes.all if process.ranks is not None]
    return RankOutcome(
        measured=figures,
        ranks=leading.ranks if leading is not None and leading.ranks else next(iter(seen), None),
        refused=refused,
        error=None if figures is not None else refused.reason if refused else error,
        log=str(first.log),
    )


def _started(
    bench: Bench,
    folder: Path,
    layout: RankLayout,
    rank: int,
    boosts: Sequence[PlannedBoost],
    facts: wire.JobFacts | None,
) -> TrialProcess:
    own = folder / f"rank{rank}"
    shared = layout.native is not None  # ranks may read what another has saved
    endless = {"min_steps": ENDLESS, "max_steps": ENDLESS} if rank and not shared else {}
    trial = bench.trial_orders(folder if shared else own, **endless)
    orders = wire.Orders(
        records=str(folder),
        boosts=tuple(wire.BoostOrder(boost.id, boost.params) for boost in boosts),
        trial=trial,
        ranks=layout.orders(rank, folder / STORE, trial.scratch, trial.protect),
    )
    variables: dict[str, str] = {}
    for boost in boosts:
        if facts is not None:
            variables.update(known.get(boost.id).environment(facts, boost.params))
    path = write_orders(orders, own.absolute())
    env = environment.for_trial(
        path, variables, layout.seed, bench.compile_cache, layout.environment(rank, os.environ)
    )
    return TrialProcess(bench.command.argv, env, folder, own / LOG)


def _follow(programs: list[TrialProcess], processes: Processes, deadline: float) -> bool:
    """Wait until rank 0 has ended its window or a rank has ended; True if the deadline passed."""
    while all(program.alive for program in programs):
        _collect(programs[0], processes)
        leading = _rank_0(processes)
        if leading is not None and leading.ended is not None:
            break
        if time.monotonic() > deadline:
            return True
        time.sleep(POLL_S)
    leading = _rank_0(processes)
    by_order = leading is not None and leading.ended is not None
    limit_s = QUIET_EXIT_S if by_order or not programs[0].alive else OWN_EXIT_S
    programs[0].wait(max(0.0, min(limit_s, deadline - time.monotonic())))
    _collect(programs[0], processes)
    return False


def mean_losses(ranks: Sequence[Process], size: int) -> tuple[float | None, ...]:
    """The mean of each step over all ranks; None if a rank has none; empty if not all reported."""
    told = [process.losses for process in ranks if process.losses]
    if len(told) < size:
        return ()
    means: list[float | None] = []
    for step in zip(*told, strict=False):
        known = [loss for loss in step if loss is not None]
        means.append(sum(known) / size if len(known) == size else None)
    return tuple(means)


def _collect(program: TrialProcess, processes: Processes) -> None:
    """Collect the records: all ranks record into one folder."""
    for pid, record in program.records():
        processes.add(pid, record)


def _rank_0(processes: Processes) -> Process | None:
    return next((process for process in processes.training if process.rank == 0), None)
