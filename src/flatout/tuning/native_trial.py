"""The trial of a program that knows ranks itself: how it is started, and the result.

If all ranks' batch is that of one process, the mean of the ranks' losses is compared with its
losses, as for rows. If the batch grows, the gain is in samples a second, and what is learned is
for the user to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flatout.measuring.rank_trial import RankOutcome
from flatout.nouns.nodes import NativeProgram
from flatout.nouns.ranks import ScalingRow
from flatout.nouns.trial import Measurement
from flatout.running.ranks.native import NativeStart
from flatout_agent import wire

NAMES = {
    "accelerate": "Accelerate",
    "fabric": "Lightning Fabric",
    "lightning": "Lightning",
    "transformers": "Transformers' Trainer",
    wire.OWN_DDP: "DDP of its own",
}
ALONE = "its processes formed no process group: each trained alone"
OWN_BATCH = "the script itself sets the batch of all ranks"
UNSCALED = "--scale-batch changes nothing: the script does not divide its work itself"
UNEVEN = "all nodes must have the same number of ranks; here they have {sizes}"
UNDIVIDED = "{ranks} ranks cannot divide a batch of {batch} evenly"
EVEN_NODES = ("fabric", "lightning")
"""These only know the ranks of a node and the number of nodes."""
LARGER_BATCH = "--scale-batch: the batch of all ranks is {size} times as large"


def start(
    seen: wire.NativeSeen | None, scale_batch: bool, tell: Callable[[str], None]
) -> NativeStart | None:
    """How to start a program that was seen to train alone, or None if its rows are cut.

    tell: called with a line on the decision, if there was one to make.
    """
    if seen is None:
        if scale_batch:
            tell(UNSCALED)
        return None
    name = NAMES.get(seen.framework, seen.framework)
    if seen.against and (not scale_batch or seen.framework == wire.OWN_DDP):
        tell(f"{name} is not started as torchrun would: {seen.against}")
        return None
    return NativeStart(seen.framework, scale_batch)


def of_nodes(
    seen: NativeProgram | None, sizes: Sequence[int], tell: Callable[[str], None]
) -> NativeStart | None:
    """How nodes with `ranks` ranks start a program, or None if its rows are cut.

    The same on all nodes: no trial could show that it does not work. tell: as in
    `start`.
    """
    if seen is None:
        return None
    against = seen.against
    if seen.framework in EVEN_NODES and len(set(sizes)) > 1:
        against = UNEVEN.format(sizes=", ".join(map(str, sizes)))
        return start(wire.NativeSeen(seen.framework, against), False, tell)
    if not seen.scale_batch:
        against = against or undivided(seen.batches, sum(sizes))
    return start(wire.NativeSeen(seen.framework, against), seen.scale_batch, tell)


def undivided(batches: Sequence[int], ranks: int) -> str:
    """Why `ranks` ranks cannot divide these batches, or "" if they can."""
    batch = next((batch for batch in batches if batch % ranks), None)
    return "" if batch is None else UNDIVIDED.format(ranks=ranks, batch=batch)


def judged(
    row: ScalingRow, written: Measurement, outcome: RankOutcome, how: NativeStart
) -> ScalingRow:
    """The row of one number of ranks, from the figures that rows would have."""
    row = replace(row, native=how.framework)
    ranks, seen = outcome.measured, outcome.ranks
    if ranks is None or row.speedup is None or row.interval is None:
        return row
    if seen is not None and not seen.backend:
        return ScalingRow(row.size, error=ALONE, native=how.framework)
    gained = speedup(written, ranks)
    low, high = (gained * bound / row.speedup for bound in row.interval)
    row = replace(row, speedup=gained, interval=(low, high))
    if how.keeps_batch:
        return row
    larger = LARGER_BATCH.format(size=row.size)
    return replace(row, losses=None, losses_reason=larger if how.scale_batch else OWN_BATCH)


def speedup(written: Measurement, ranks: Measurement) -> float:
    """The ratio of samples per second, or of steps if samples are not known."""
    if written.samples_per_s and ranks.samples_per_s:
        return ranks.samples_per_s / written.samples_per_s
    return written.step_ms / ranks.step_ms


def fails(row: ScalingRow, how: NativeStart) -> str:
    """Why its rows are cut instead, or "" if they are not: it works, or starts DDP itself."""
    if how.framework == wire.OWN_DDP or how.scale_batch:
        return ""
    if row.error is not None:
        return row.error
    return row.losses_reason if row.losses == "different" else ""
