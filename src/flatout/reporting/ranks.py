"""What `flatout run` says about ranks: which ended the run, whether they pay, how they trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.ranks import RankFailure, RanksEnd, Scaling, ScalingRow
from flatout.reporting import plain, terminal

if TYPE_CHECKING:
    from rich.console import Console

OURS = {
    "exact": "the same losses",
    "rounding": "losses within what rounding does to them",
    "noise": "losses within the noise of random numbers",
    "different": "other losses",
}


TOO_GOOD = 1.5
"""The limit of a credible speed-up per rank: caches can give slightly more than 1."""
DISTURBED = "; {} ranks cannot gain that much: another program slowed the one process down"
NATIVE = {
    "accelerate": "Accelerate",
    "ddp": "the script itself",
    "fabric": "Lightning Fabric",
    "lightning": "Lightning",
    "transformers": "Transformers' Trainer",
}


def failed(failure: RankFailure, console: Console | None = None) -> None:
    """Which rank ended the run, why, and what became of the others."""
    next_step = ""
    if failure.ending == "hang":
        next_step = f"read the stacks: {failure.stacks}" if failure.stacks else ""
    elif failure.ending == "early":
        next_step = f"read its output: {failure.log}" if failure.log else ""
    elif failure.log is not None:
        next_step = f"flatout explain {failure.log}"
    if next_step and failure.node and failure.log is not None:
        next_step = f"on node {failure.node}: {next_step}"
    terminal.error(failure_line(failure), console=console)
    if others := others_line(failure):
        terminal.say(others, console)
    if failure.stacks and failure.ending != "hang":
        where = f" (node {failure.node})" if failure.node else ""
        terminal.say(f"stacks of those that ran{where}: {failure.stacks}", console)
    if next_step:
        terminal.next_step(next_step, console)


def started_again(number: int, console: Console | None = None) -> None:
    """All ranks are started again. number: from 1."""
    terminal.say(f"all ranks are started again (restart {number})", console)


def failure_line(failure: RankFailure) -> str:
    """For example "rank 1 of 2 ended first: ValueError: no such label, step 412, train.py:88"."""
    verb = "hangs" if failure.ending == "hang" else "ended first"
    where = f" (node {failure.node})" if failure.node else ""
    line = f"rank {failure.rank} of {failure.size}{where} {verb}: {failure.error}"
    if failure.ending == "gone":
        line = f"node {failure.node} is gone: {failure.error}"
    if failure.step is not None:
        line += f", {'after ' if failure.ending == 'hang' else ''}step {failure.step}"
    return f"{line}, {failure.place}" if failure.place else line


def others_line(failure: RankFailure) -> str:
    """What became of the others, or empty if there were none to end."""
    count = failure.ended
    if not count and failure.lost:
        lost = "the other" if failure.size == 2 else f"{failure.lost} others"
        return f"{lost} lost it in the exchange between ranks and ended"
    if not count:
        return ""
    who = "the other" if failure.size == 2 else f"the other {count}"
    who += f" on node {failure.node}" if failure.node else ""
    were, seconds = "was" if count == 1 else "were", f"{failure.ended_after_s:.1f} s later"
    waited = ""
    if failure.waiting == count:
        waited = "waited in the exchange between ranks and "
    elif failure.waiting:
        waited = f"({failure.waiting} of them waited in the exchange between ranks) "
    return f"{who} {waited}{were} ended {seconds}"


def ended(end: RanksEnd, console: Console | None = None) -> None:
    """How the ranks trained together, below the line that closes the run."""
    for line in ended_lines(end):
        terminal.say(line, console)


def ended_lines(end: RanksEnd) -> Iterator[str]:
    """The same as text."""
    parts = [f"{end.size} ranks" + (f" ({end.backend})" if end.backend else "")]
    if end.native:
        parts.append(
            f"started as torchrun would; {NATIVE.get(end.native, end.native)} divided the work"
        )
    if end.exchange_s is not None:
        sent = f" of {units.size(end.exchanged_bytes)}" if end.exchanged_bytes else ""
        parts.append(f"gradients{sent} exchanged in {_ms(end.exchange_s)} a step")
    if end.region_s is not None:
        parts.append(f"rows joined in {_ms(end.region_s)} a step")
    cut = [model.model for model in end.models if model.cut]
    if cut:
        parts.append(f"each rank computed its own rows of {', '.join(dict.fromkeys(cut))}")
    yield "; ".join(parts)
    for model in end.models:
        if not model.cut:
            why = f": {model.reason}" if model.reason else ""
            yield f"every rank computed all of {model.model}{why}"


def trial(scaling: Scaling, console: Console | None = None) -> None:
    """The trial before the run: a line for each number of ranks, and the choice."""
    for row in scaling.rows:
        terminal.say(row_line(row, scaling), console)
    if scaling.chosen is not None and scaling.count != scaling.asked:
        line = f"{scaling.count} ranks are the fastest: it trains on {scaling.count}"
        terminal.say(f"{line}, not on {scaling.asked}", console)


def row_line(row: ScalingRow, scaling: Scaling) -> str:
    """For example "2 ranks: 1.83x (1.80-1.86), 21.0 ms a step instead of 38.4 ms"."""
    head = f"{row.size} ranks: "
    if row.error is not None or row.speedup is None or row.interval is None:
        return f"{head}{plain.one_line(row.error or 'not measured')}"
    times = f"{units.milliseconds(row.step_ms)} a step instead of"
    line = f"{head}{units.ratio(row.speedup)} ({units.ratios(row.interval)}), {times} "
    line += units.milliseconds(scaling.written_ms)
    nothing = row.losses_reason if row.native and row.losses_reason else "no losses to compare"
    losses = OURS[row.losses] if row.losses is not None else nothing
    started = ", started as torchrun would" if row.native else ""
    doubt = DISTURBED.format(row.size) if row.speedup > TOO_GOOD * row.size else ""
    return f"{line}{started}; {losses}{doubt}"


def _ms(seconds: float) -> str:
    return units.milliseconds(1000 * seconds)
