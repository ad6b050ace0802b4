"""Calm code is short: files up to 400 lines, functions up to 40, commands up to 110."""

from __future__ import annotations

import ast
from pathlib import Path

from every import for_every
from law.sources import FILES, SRC, name, tree

FILE_LINES = 400
FUNCTION_LINES = 40
COMMAND_LINES = 110


@for_every(FILES, name)
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"{lines} lines"
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert long == {}


def test_commands_are_arguments_and_wiring() -> None:
    commands = [path for path in (SRC / "flatout/commands").glob("*.py") if path.stem != "__init__"]
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in commands}
    assert {name: lines for name, lines in lengths.items() if lines > COMMAND_LINES} == {}


def test_no_drawers_for_odds_and_ends() -> None:
    forbidden = {"utils", "util", "common", "helpers", "misc", "tools", "other", "base"}
    assert [name(path) for path in FILES if forbidden & set(path.with_suffix("").parts)] == []
