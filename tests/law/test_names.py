"""One word for one thing: a public class name means one class, a file's name what it owns."""

from __future__ import annotations

import ast
from collections import defaultdict

from law.sources import FILES, name, tree


def test_public_class_names_are_unique() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(name(path))
    assert {word: where for word, where in files.items() if len(where) > 1} == {}


def test_no_drawers_for_odds_and_ends() -> None:
    forbidden = {"utils", "util", "common", "helpers", "misc", "tools", "other", "base"}
    assert [name(path) for path in FILES if forbidden & set(path.with_suffix("").parts)] == []
