"""The project's own source files, parsed."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

SRC = Path(__file__).parents[2] / "src"
FILES = sorted(SRC.rglob("*.py"))
LIBRARY = [path for path in FILES if path.is_relative_to(SRC / "flatout_train")]
"""What a user's own loop imports on purpose: it may import torch, and asks for Python 3.11."""
AGENT = [path for path in FILES if path.is_relative_to(SRC / "flatout_agent")]
PROGRAMS = [path for path in FILES if path.is_relative_to(SRC / "flatout_programs")]
"""What the user's interpreter runs by file: Python 3.7, where torch runs in it 3.10."""


def name(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(module: ast.Module) -> dict[str, int]:
    """Top-level names of everything imported, wherever it stands, with a line."""
    found: dict[str, int] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found.update({item.name.partition(".")[0]: node.lineno for item in node.names})
        elif isinstance(node, ast.ImportFrom):
            found[(node.module or "").partition(".")[0]] = node.lineno
    return found


def script_of_docs(name: str) -> ModuleType:
    """A script in docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SRC.parent / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
