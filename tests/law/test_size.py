"""Calm code is short: functions up to 40 lines. `make lint` warns of files above 400."""

from __future__ import annotations

import ast
from pathlib import Path

from every import for_every
from law.sources import FILES, name, tree

FUNCTION_LINES = 40


@for_every(FILES, name)
def test_functions_are_short(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert long == {}


def test_no_drawers_for_odds_and_ends() -> None:
    forbidden = {"utils", "util", "common", "helpers", "misc", "tools", "other", "base"}
    assert [name(path) for path in FILES if forbidden & set(path.with_suffix("").parts)] == []
