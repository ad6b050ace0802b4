"""A plan as plain PyTorch lines: Python source, so that it can be pasted or kept as a file."""

from __future__ import annotations

from flatout.nouns import units
from flatout.nouns.ejected import Ejected, ScriptPlace

PLACES: dict[ScriptPlace, str] = {
    "environment": "At the very top, before `import torch`",
    "start": "At the top, after `import torch`",
    "loader": "Where the DataLoader is made and iterated",
    "model": "Where the model is made and called",
    "optimizer": "Where the optimizer is made and steps",
}
"""Where lines go, in the order of a script."""


def source(ejected: Ejected) -> str:
    """The text for people: a file of Python."""
    total_gain = f", {units.ratio(ejected.speedup)} together" if ejected.speedup else ""
    count = units.count(len(ejected.boosts), "boost")
    lines = [f"# {ejected.plan} as plain PyTorch: {count}{total_gain}"]
    place = None
    for boost in ejected.boosts:
        if boost.where != place:
            place = boost.where
            lines += ["", "", f"# ---- {PLACES[place]}"]
        gain = f" ({units.ratio(boost.gain)})" if boost.gain else ""
        lines += ["", f"# {boost.id}{gain}: {boost.title}", *boost.lines]
    if not ejected.job_known:
        lines += ["", "# The plan does not say for which program it was made: check the device."]
    return "\n".join(lines)
