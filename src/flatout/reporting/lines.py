"""A plan as plain PyTorch lines: Python source, so that it can be pasted or kept as a file."""

from __future__ import annotations

from typing import Any

from flatout.nouns import units

PLACES = {
    "environment": "At the very top, before `import torch`",
    "start": "At the top, after `import torch`",
    "loader": "Where the DataLoader is made and iterated",
    "model": "Where the model is made and called",
    "optimizer": "Where the optimizer is made and steps",
}
"""Where lines go, in the order of a script."""


def source(document: dict[str, Any]) -> str:
    """The text for people of a `flatout.eject/1` document."""
    entries = document["boosts"]
    speedup = document["speedup"]
    total_gain = f", {units.ratio(speedup)} together" if speedup else ""
    lines = [
        f"# {document['plan']} as plain PyTorch: {units.count(len(entries), 'boost')}{total_gain}"
    ]
    place = None
    for entry in entries:
        if entry["where"] != place:
            place = entry["where"]
            lines += ["", "", f"# ---- {PLACES[place]}"]
        gain = f" ({units.ratio(entry['gain'])})" if entry["gain"] else ""
        lines += ["", f"# {entry['id']}{gain}: {entry['title']}", *entry["lines"]]
    if not document["job_known"]:
        lines += ["", "# The plan does not say for which program it was made: check the device."]
    return "\n".join(lines)
