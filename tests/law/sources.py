"""The project's own source files, parsed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

SRC = Path(__file__).parents[2] / "src"
FILES = sorted(SRC.rglob("*.py"))
LIBRARY = [path for path in FILES if path.is_relative_to(SRC / "flatout_train")]
"""What a user's own loop imports on purpose: it may import torch, and asks for Python 3.11."""
AGENT = [path for path in FILES if path.is_relative_to(SRC / "flatout_agent")]
PROGRAMS = [path for path in FILES if path.is_relative_to(SRC / "flatout_programs")]
"""What the user's interpreter runs by file: Python 3.7, where torch runs in it 3.10."""
FINDING = ("What it sees", "Why it matters", "Cure", "References")
"""The headings of the page of a check or of an alert."""


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


def assert_whole_page(module: Any, headings: Sequence[str]) -> None:
    """The module's docstring is a page: a sentence, then each section with some text."""
    title, _, body = inspect.cleandoc(module.__doc__ or "").partition("\n")
    assert title.endswith("."), "the first line is a sentence"
    assert len(title) <= 97
    before, *parts = re.split(r"^## (.+)$", body, flags=re.MULTILINE)
    assert not before.strip()
    found = dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
    assert list(found) == list(headings)
    assert [heading for heading, text in found.items() if len(text) < 20] == []
    assert "https://" in found["References"]
