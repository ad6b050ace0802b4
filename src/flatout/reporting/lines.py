"""A plan as plain PyTorch: changes of the script as a diff, or lines of Python as a template."""

from __future__ import annotations

from flatout.nouns import units
from flatout.nouns.ejected import Ejected, EjectedBoost, ScriptPlace

PLACES: dict[ScriptPlace, str] = {
    "environment": "At the very top, before `import torch`",
    "start": "At the top, after `import torch`",
    "loader": "Where the DataLoader is made and iterated",
    "model": "Where the model is made and called",
    "frozen": "Where a model that is not trained is called",
    "optimizer": "Where the optimizer is made and steps",
}
"""Where lines go, in script order."""


def source(ejected: Ejected) -> str:
    """The text for people: a file of Python, or a diff where the script itself can be changed."""
    total_gain = f", {units.ratio(ejected.speedup)} together" if ejected.speedup else ""
    if ejected.diff:
        # `patch` and `git apply` pass over what is above: the changes, and templates for the rest.
        lines = [f"# {ejected.plan} as changes of {ejected.script}{total_gain}"]
        changes = [boost for boost in ejected.boosts if not boost.template_because]
        lines += [f"#   {_named(boost)}: {boost.title}" for boost in changes]
        lines += [f"# {ejected.note}"] if ejected.note else []
        lines += [f"# The changed script was {ejected.tried or 'not run'}."]
        lines += [f"# Apply them: flatout eject | patch {ejected.script}"]
        for boost in ejected.boosts:
            if boost.template_because:
                lines += ["#", f"# Left to you, {_named(boost)}: {boost.title}"]
                lines += [f"# ({boost.template_because})", *(f"#   {line}" for line in boost.lines)]
        return "\n".join([*lines, "", *ejected.diff])
    count = units.count(len(ejected.boosts), "boost")
    lines = [f"# {ejected.plan} as plain PyTorch: {count}{total_gain}"]
    if ejected.note:
        lines += [f"# {ejected.note}"]
    if ejected.yours:
        lines += [f"# A template: {', '.join(ejected.yours)} stand for what your script calls so."]
    place = None
    for boost in ejected.boosts:
        if boost.where != place:
            place = boost.where
            lines += ["", "", f"# ---- {PLACES[place]}"]
        lines += ["", f"# {_named(boost)}: {boost.title}", *boost.lines]
    if not ejected.job_known:
        lines += ["", "# The plan does not say for which program it was made: check the device."]
    return "\n".join(lines)


def _named(boost: EjectedBoost) -> str:
    return f"{boost.id} ({units.ratio(boost.gain)})" if boost.gain else boost.id
