"""A plan as plain PyTorch lines: Python source that can be pasted or kept as a file."""

from __future__ import annotations

import ast
import builtins

from flatout.nouns import units
from flatout.nouns.ejected import Ejected, ScriptPlace

PLACES: dict[ScriptPlace, str] = {
    "environment": "At the very top, before `import torch`",
    "start": "At the top, after `import torch`",
    "loader": "Where the DataLoader is made and iterated",
    "model": "Where the model is made and called",
    "optimizer": "Where the optimizer is made and steps",
}
"""Where lines go, in script order."""


OF_PYTHON = {"torch", *dir(builtins)}


def source(ejected: Ejected) -> str:
    """The text for people: a Python file."""
    total_gain = f", {units.ratio(ejected.speedup)} together" if ejected.speedup else ""
    count = units.count(len(ejected.boosts), "boost")
    lines = [f"# {ejected.plan} as plain PyTorch: {count}{total_gain}"]
    if names := _yours("\n".join(line for boost in ejected.boosts for line in boost.lines)):
        lines += [f"# A template: {', '.join(names)} stand for what your script calls so."]
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


def _yours(source: str) -> list[str]:
    """Names that the lines use but do not define."""
    nodes = [*ast.walk(ast.parse(source))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    made |= {item.asname or item.name for node in imports for item in node.names}
    used = dict.fromkeys(name.id for name in names if isinstance(name.ctx, ast.Load))
    return [name for name in used if name not in made and name not in OF_PYTHON]
