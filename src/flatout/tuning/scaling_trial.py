"""Does it pay to train on several ranks, and do they learn the same? One short trial of each.

One process as written, then 2, 4, ... ranks, each in throw-away processes with the same seed that
change nothing of the user's. First the losses of their common steps are compared, then the step
times.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flatout.measuring import rank_trial, trial
from flatout.measuring.outcome import LEAST_STEPS
from flatout.measuring.rank_trial import RankOutcome
from flatout.measuring.trial import Bench
from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.plan import PlannedBoost
from flatout.nouns.ranks import LossesAgree, Scaling, ScalingRow
from flatout.nouns.trial import Measurement
from flatout.running.one.trial_process import end_all
from flatout.running.ranks import endings
from flatout.running.ranks.layout import RankLayout, fewer
from flatout.running.ranks.native import NativeStart
from flatout.tuning import native_trial, unmeasurable
from flatout.tuning.confirm import LEVEL, RESAMPLES
from flatout.tuning.losses import SIGMAS, loss_sigma
from flatout_agent import wire

LIMIT_S = 300.0
"""Seconds for one trial; a program that starts more slowly needs --no-trial."""
FIRST_STEPS = 5
TOLERANCE = 1e-4
"""Relative difference of a loss that rounding can explain in the first steps."""
LEAST_ROUNDING = 1e-7
"""The least relative error of gradients from adding float32 numbers in another order."""
ROUNDINGS = 10.0
"""The losses of ranks may be off by this many times the effect of disturbed gradients."""
LEAST_SPEEDUP = 1.1
MEMORY_SHARE = 0.8
"""Share of main memory that all copies of a program on CPU cores may take together."""


@dataclass(frozen=True)
class RankMachine:
    """The resources for the ranks."""

    cores: int
    memory_bytes: int | None = None


@dataclass(frozen=True)
class TooShort:
    """A program with too few steps to measure."""

    native: NativeStart | None = None
    """How it is started nevertheless."""


def measure(
    bench: Bench,
    layout: RankLayout,
    boosts: tuple[PlannedBoost, ...],
    machine: RankMachine,
    facts: wire.JobFacts | None = None,
    tell: Callable[[str], None] = lambda line: None,
    scale_batch: bool = False,
) -> Scaling | TooShort:
    """The trial. Raises UserError.

    boosts: on in all trials; facts: those of the program they were chosen for; tell: called with a
    line on the next trial; scale_batch: whether a framework may give each rank a whole batch.
    """
    try:
        tell("trial: one process, as written")
        first = trial.run(bench, trial.FIRST, boosts, facts, LIMIT_S)
        native = native_trial.start(first.native, scale_batch, tell)
        batches = first.native.batches if first.native is not None else ()
        asked = _Asked(bench, layout, boosts, machine, facts, tell, native, batches)
        written = first.measured or asked.without_others()
        ended_well = first.process is not None and not first.returncode and not first.late
        if written is None and ended_well:
            return TooShort(native)
        if written is None:
            raise unmeasurable.why(first)
        drawn = first.native is not None and first.native.random
        rows = _rows(asked, written, drawn)
    except KeyboardInterrupt:
        end_all(bench.folder)
        raise
    return chosen(layout.size, written.step_ms, rows)


class _Asked(NamedTuple):
    """The common inputs of all trials of one job."""

    bench: Bench
    layout: RankLayout
    boosts: tuple[PlannedBoost, ...]
    machine: RankMachine
    facts: wire.JobFacts | None
    tell: Callable[[str], None]
    native: NativeStart | None = None
    batches: tuple[int, ...] = ()
    """Batches that a framework would divide between the ranks."""

    def without_others(self) -> Measurement | None:
        """The only process of a program that demands torchrun's variables, or None otherwise."""
        if self.native is None or self.native.framework != wire.OWN_DDP:
            return None
        self.tell("trial: one process, as torchrun would start it")
        return self.run(1, native=self.native).measured

    def run(
        self,
        size: int,
        native: NativeStart | None = None,
        rounding: float = 0.0,
    ) -> RankOutcome:
        part = fewer(self.layout, size, self.machine.cores)
        part = replace(part, native=native, rounding=rounding)
        settings = part, self.boosts, self.facts, LIMIT_S
        return rank_trial.run(self.bench, *settings)


def _rows(asked: _Asked, written: Measurement, drawn: bool = False) -> list[ScalingRow]:
    """Each number of ranks in turn, until one cannot be tried or is wrong.

    drawn: whether models draw random numbers, in a program that divides its work itself.
    """
    rows: list[ScalingRow] = []
    how = asked.native
    for size in sizes(asked.layout.size):
        if (excess := _memory_excess(size, written, asked.layout, asked.machine)) is not None:
            return [*rows, ScalingRow(size, error=excess)]
        if how is not None:
            row = _native_row(asked, how, size, written, drawn)
            if not (why := native_trial.fails(row, how)):
                rows.append(row)
                if row.error is not None:
                    break
                continue
            asked.tell(f"flatout divides its batches instead: {why}")
            how = None
        asked.tell(f"trial: {size} ranks")
        outcome = asked.run(size)
        if outcome.refused is not None:
            reason, step = outcome.refused.reason, outcome.refused.next_step
            message = f"{size} ranks cannot train this script together: {reason}"
            raise UserError(message, step or "run it without --ranks and --gpus", 1)
        row = compared(size, written, outcome)
        if row.losses == "different":
            row = _beside_rounding(asked, row, written, outcome)
        rows.append(row)
        if outcome.measured is None or rows[-1].losses == "different":
            break
    return rows


def _beside_rounding(
    asked: _Asked, row: ScalingRow, written: Measurement, outcome: RankOutcome
) -> ScalingRow:
    """The row, judged by the effect of gradients that are equally far off in one process."""
    seen, ranks = outcome.ranks, outcome.measured
    if seen is None or seen.gradient_error is None or ranks is None:
        return row
    if any(model.random for model in row.models):
        return row
    share = max(seen.gradient_error, LEAST_ROUNDING)
    asked.tell("trial: one process whose gradients are rounded differently")
    disturbed = asked.run(1, rounding=share).measured
    if disturbed is None or not within_rounding(written.losses, ranks.losses, disturbed.losses):
        return row
    reason = f"as those of one process whose gradients are disturbed by {share:.0e} of their value"
    return replace(row, losses="rounding", losses_reason=reason)


def within_rounding(
    one: Sequence[float | None], ranks: Sequence[float | None], disturbed: Sequence[float | None]
) -> bool:
    """Whether the ranks' losses are about as far off as those of one disturbed process."""
    off, off_disturbed = _first_errors(one, ranks), _first_errors(one, disturbed)
    sigma = loss_sigma(tuple(ranks), tuple(one), 0)
    sigma_disturbed = loss_sigma(tuple(disturbed), tuple(one), 0)
    if not off or not off_disturbed or sigma is None or sigma_disturbed is None:
        return False
    # The first loss comes before any gradient: no error has grown yet.
    grown = max(off) <= max(TOLERANCE, ROUNDINGS * max(off_disturbed)) and off[0] <= TOLERANCE
    return grown and abs(sigma) <= max(SIGMAS, SIGMAS * abs(sigma_disturbed))


def _first_errors(one: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Relative errors of the first steps in which both have a loss, or empty if there are none."""
    both = _both(one, other) or []
    return [abs(a - b) / max(abs(a), 1e-12) for a, b in both[:FIRST_STEPS]]


def _both(
    one: Sequence[float | None], other: Sequence[float | None]
) -> list[tuple[float, float]] | None:
    """Losses of steps that both have, or None if `other` is NaN or Inf where `one` is a number."""
    pairs = list(zip(one, other, strict=False))
    if any(a is not None and b is None for a, b in pairs):
        return None
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _native_row(
    asked: _Asked, how: NativeStart, size: int, written: Measurement, drawn: bool
) -> ScalingRow:
    uneven = native_trial.undivided(asked.batches, size) if how.keeps_batch else ""
    if uneven:
        return ScalingRow(size, error=uneven, native=how.framework)
    asked.tell(f"trial: {size} ranks, as torchrun would start them")
    outcome = asked.run(size, native=how)
    return native_trial.judged(compared(size, written, outcome, drawn=drawn), written, outcome, how)


def sizes(most: int) -> list[int]:
    """2, 4, 8 ... and finally `most`."""
    powers = [2**power for power in range(1, most.bit_length()) if 2**power < most]
    return [*powers, most]


def compared(
    size: int,
    written: Measurement,
    outcome: RankOutcome,
    drawn: bool = False,
) -> ScalingRow:
    """One number of ranks against one process. drawn: random numbers are, even if not reported."""
    seen, ranks = outcome.ranks, outcome.measured
    if ranks is None:
        return ScalingRow(size, error=f"{outcome.error} (log: {outcome.log})")
    models = endings.models(seen) if seen is not None else ()
    random_numbers = drawn or any(model.random for model in models)
    verdict, reason = losses_agree(written.losses, ranks.losses, random_numbers)
    waited = ranks.wait_share
    return ScalingRow(
        size=size,
        step_ms=ranks.step_ms,
        speedup=written.step_ms / ranks.step_ms,
        interval=interval(written.steps_ms, ranks.steps_ms),
        losses=verdict,
        losses_reason=reason,
        models=models,
        exchange_s=seen.exchange_s if seen is not None else None,
        region_s=seen.region_s if seen is not None else None,
        wait_s=None if waited is None else waited * ranks.step_ms / 1000,
    )


def losses_agree(
    one: Sequence[float | None], several: Sequence[float | None], drawn: bool
) -> tuple[LossesAgree | None, str]:
    """(verdict, why) on the common steps; the verdict is None if there are too few losses.

    drawn: whether each rank draws its own random numbers, so that no two losses are equal.
    """
    both = _both(one, several)
    if both is None:
        return "different", "NaN or Inf where one process has a number"
    if len(both) < LEAST_STEPS:
        return None, "the program has too few losses to compare"
    errors = _first_errors(one, several)
    if not drawn and max(errors) > TOLERANCE:
        return "different", f"a loss of the first steps is off by {max(errors):.1e} of its value"
    sigma = loss_sigma(tuple(several), tuple(one), 0)
    if sigma is not None and abs(sigma) > SIGMAS:
        return "different", f"the losses are off by {sigma:+.1f} sigma"
    if drawn:
        return "noise", f"within {abs(sigma or 0.0):.1f} sigma; each rank draws its own numbers"
    return "exact", f"the first {len(errors)} differ by at most {max(errors):.1e} of their value"


def interval(one_ms: Sequence[float], several_ms: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval of the speed-up from step times; the same for the same times."""
    generator = random.Random(0)  # the interval must not differ from one report to the next
    ratios = sorted(
        statistics.fmean(generator.choices(one_ms, k=len(one_ms)))
        / statistics.fmean(generator.choices(several_ms, k=len(several_ms)))
        for _ in range(RESAMPLES)
    )
    tail = (1 - LEVEL) / 2
    return ratios[int(tail * RESAMPLES)], ratios[int((1 - tail) * RESAMPLES) - 1]


def chosen(asked: int, written_ms: float, rows: Sequence[ScalingRow]) -> Scaling:
    """The fastest number of ranks that is correct and pays, or why there is none."""
    wrong = next((row for row in rows if row.losses == "different"), None)
    if wrong is not None:
        reason = f"{wrong.size} ranks do not learn the same as one process: {wrong.losses_reason}"
        return Scaling(asked, None, written_ms, tuple(rows), reason)
    paying = [
        row
        for row in rows
        if row.speedup is not None
        and row.interval is not None
        and row.speedup >= LEAST_SPEEDUP
        and row.interval[0] > 1.0
    ]
    if paying:
        best = max(paying, key=lambda row: row.speedup or 0.0)
        return Scaling(asked, best.size, written_ms, tuple(rows))
    measured = [row for row in rows if row.speedup is not None]
    if not measured:
        failed = rows[-1] if rows else ScalingRow(asked)
        reason = f"{failed.size} ranks could not be measured: {failed.error}"
        return Scaling(asked, None, written_ms, tuple(rows), reason)
    best = max(measured, key=lambda row: row.speedup or 0.0)
    return Scaling(asked, None, written_ms, tuple(rows), _too_slow(best))


def _too_slow(row: ScalingRow) -> str:
    """The numbers, and their limit."""
    assert row.interval is not None
    speed = f"{units.ratio(row.speedup)} as fast as one process ({units.ratios(row.interval)})"
    parts = {
        "exchange gradients": row.exchange_s,
        "join and split rows": row.region_s,
        "wait for data": row.wait_s,
    }
    known = {what: 1000 * seconds for what, seconds in parts.items() if seconds}
    largest = sorted(known.items(), key=lambda part: -part[1])
    spent = ", ".join(f"{units.milliseconds(ms)} {what}" for what, ms in largest)
    limits = f"; of {units.milliseconds(row.step_ms)} a step, {spent}" if spent else ""
    whole = [model for model in row.models if not model.cut]
    uncut = f"; every rank computes all of {whole[0].model}: {whole[0].reason}" if whole else ""
    return f"{row.size} ranks are {speed}{limits}{uncut}"


def _memory_excess(
    size: int, written: Measurement, layout: RankLayout, machine: RankMachine
) -> str | None:
    """Why `ranks` copies of the program do not fit into main memory, or None if they do."""
    if layout.gpus or written.peak_bytes is None or machine.memory_bytes is None:
        return None
    needed = size * written.peak_bytes
    if needed <= MEMORY_SHARE * machine.memory_bytes:
        return None
    return (
        f"one process takes {units.size(written.peak_bytes)}, {size} would take "
        f"{units.size(needed)} of {units.size(machine.memory_bytes)}"
    )


def refused(scaling: Scaling) -> UserError:
    """The message to the user if no number of ranks pays."""
    return UserError(
        f"not trained on ranks: {scaling.refusal}",
        "run it without --ranks and --gpus; --no-trial uses them anyway",
        1,
    )
