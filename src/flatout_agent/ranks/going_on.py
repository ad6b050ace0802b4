"""State that ranks take over from an earlier start through a checkpoint.

Rank 0 saves it and each rank reads it, as it is the same in all. It holds the kinds of calls that
were cut (the first of a kind is not), and which random numbers come next inside them. With it, the
same number of ranks computes each call as without the interruption, to the last bit.
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
    """The state for a checkpoint, of numbers and strings, or None if this process trains alone."""
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
    """Go on from a checkpoint's state, or None if one process wrote it.

    Returns what differs from a run without the interruption, or "" if nothing does.
    """
    size = 1 if _regions is None else _regions.group.size
    before = 1 if saved is None else int(saved["size"])
    if _regions is not None and saved is not None:
        _regions.go_on(saved["root"], saved["calls"], saved["cut"])
    if before == size or (saved is not None and not saved["calls"]):
        return ""
    return (
        f"the checkpoint was written by {_ranks(before)}, and {_ranks(size)} resumed from it:"
        " random numbers that the model itself draws (dropout) differ, as they would have with"
        " that number of ranks from the start"
    )


def _ranks(count: int) -> str:
    return "one process" if count == 1 else f"{count} ranks"
