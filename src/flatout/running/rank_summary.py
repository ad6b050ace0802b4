"""What the ranks of a run recorded about training together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from flatout.nouns.errors import UserError
from flatout.nouns.ranks import (
    RANKS_TRIAL,
    ModelCut,
    RankFailure,
    RanksEnd,
    Scaling,
)
from flatout.running.processes import Processes
from flatout_agent import wire


def ranks_end(
    records: Iterable[tuple[int, wire.Record]],
    size: int,
    failure: RankFailure | None = None,
    scaling: Scaling | None = None,
    native: str = "",
) -> RanksEnd:
    """How `size` ranks trained together, as the lowest that has told says.

    native: the framework that divided the work itself.
    """
    told = [process for process in Processes(records).all if process.ranks is not None]
    seen = min(told, key=lambda process: process.rank).ranks if told else None
    if seen is None:
        return RanksEnd(size, scaling=scaling, failure=failure, native=native)
    return RanksEnd(
        size=seen.size,
        backend=seen.backend,
        models=models(seen),
        exchanged_bytes=seen.exchanged_bytes or None,
        exchange_s=seen.exchange_s or None,
        region_s=seen.region_s or None,
        gradient_error=seen.gradient_error,
        scaling=scaling,
        failure=failure,
        native=native,
    )


def write_trial(scaling: Scaling, run_folder: Path) -> None:
    """Keep the trial before a run, for `flatout report`. Raises OSError."""
    text = json.dumps(dataclasses.asdict(scaling), indent=2)
    partial = run_folder / f"{RANKS_TRIAL}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(run_folder / RANKS_TRIAL)


def models(seen: wire.RanksSeen) -> tuple[ModelCut, ...]:
    """Which models' batches are cut, and why the others are not."""
    return tuple(
        ModelCut(part.model, part.cut, part.reason, part.rows, part.error, part.random)
        for part in seen.regions
    )


def check_refusal(records: Iterable[tuple[int, wire.Record]]) -> None:
    """Raise UserError where a rank has refused to train this job, with its reason."""
    for process in Processes(records).all:
        if process.refused is not None:
            refused = process.refused
            message = f"the ranks cannot train this script together: {refused.reason}"
            raise UserError(message, refused.next_step or None, 1)
