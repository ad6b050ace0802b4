"""What the ranks of one start take over from those of an earlier one, by a checkpoint.

Rank 0 saves it and each rank reads it: it is the same in all of them. With it as many ranks as
before compute each call as they would have without the interruption, to the last bit: which kinds
of calls were cut (the first one of a kind is not), and which random numbers come next inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout_agent.ranks.regions import Regions

_regions: Regions | None = None


def offer(regions: Regions) -> None:
    """Let checkpoints of this process, one of several ranks, hold what its regions need."""
    global _regions
    _regions = regions


def state() -> dict[str, Any] | None:
    """For a checkpoint: numbers and strings; None: this process trains alone."""
    regions = _regions
    if regions is None:
        return None
    numbers = regions.numbers
    return {
        "size": regions.group.size,
        "root": numbers.root,
        "calls": numbers.calls,
        "cut": regions.cut_kinds,
    }


def resume(saved: Mapping[str, Any] | None) -> str:
    """Go on from what a checkpoint holds; None: one process wrote it.

    Returns what is not as it would have been without the interruption; "": nothing.
    """
    size = 1 if _regions is None else _regions.group.size
    before = 1 if saved is None else int(saved["size"])
    if _regions is not None and saved is not None:
        _regions.go_on(saved["root"], saved["calls"], saved["cut"])
    if before == size or (saved is not None and not saved["calls"]):
        return ""
    return (
        f"the checkpoint is of {_ranks(before)} and {_ranks(size)} resumed from it: random "
        "numbers that the model itself draws (dropout) go on differently, as they would have "
        "with another number of ranks from the start"
    )


def _ranks(count: int) -> str:
    return "one process" if count == 1 else f"{count} ranks"
