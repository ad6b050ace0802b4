"""Finds, from the source, the lines of a function that lead to the values used on one of
its lines.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from flatout_agent.watch.profile.switches import MOST_FILES, parsed

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BODIES = (*FUNCTIONS, ast.ClassDef)
OUTLINES = ("shape", "size", "ndim", "dtype", "nbytes", "device")
"""Attributes that do not depend on values."""


@dataclass(frozen=True)
class _Statement:
    """A simple statement, or the head of a compound one."""

    first: int
    last: int
    sets: frozenset[str]
    """Names that it binds or changes."""
    takes: frozenset[str]
    calls: frozenset[str]
    """Names of functions and methods that it calls."""


@functools.lru_cache(maxsize=16 * MOST_FILES)
def lines_leading_to(path: str, number: int) -> frozenset[int]:
    """The lines of the enclosing function that lead to this one, including itself, and of functions
    of the same file that only they call. Empty if the source cannot be read.
    """
    tree = parsed(path)
    if tree is None:
        return frozenset()
    statements = list(_statements(_body_around(tree, number)))
    slice_ = [item for item in statements if item.first <= number <= item.last]
    names = {name for item in slice_ for name in item.takes}
    waiting = [item for item in statements if item not in slice_]
    while more := [item for item in waiting if not names.isdisjoint(item.sets)]:
        slice_ += more
        names.update(name for item in more for name in item.takes)
        waiting = [item for item in waiting if item not in more]
    lines = {line for item in slice_ for line in range(item.first, item.last + 1)}
    called = {name for item in slice_ for name in item.calls}
    return frozenset(lines | _helpers(tree, called, lines))


def _body_around(tree: ast.Module, number: int) -> ast.AST:
    """The innermost function that contains a line, else the module."""
    around: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.body[0].lineno <= number <= (node.end_lineno or 0):
            around = node  # the outer ones come first
    return around


def _statements(body: ast.AST) -> Iterator[_Statement]:
    """The statements of a function, without those of nested functions."""
    waiting = [child for child in ast.iter_child_nodes(body) if isinstance(child, ast.stmt)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, BODIES):
            continue
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        handlers = [child for child in ast.iter_child_nodes(node) if not _is_simple(child)]
        children += [item for handler in handlers for item in ast.iter_child_nodes(handler)
                     if isinstance(item, ast.stmt)]  # fmt: skip
        waiting += children
        yield _statement(node, min((child.lineno for child in children), default=0))


def _is_simple(node: ast.AST) -> bool:
    return not isinstance(node, (ast.ExceptHandler, ast.match_case))


def _statement(node: ast.stmt, begins: int) -> _Statement:
    """begins: the first line of the statements in it, or 0 if there are none."""
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    inside = [item for part in parts if _is_simple(part) for item in ast.walk(part)]
    outlines = {item.value for item in inside
                if isinstance(item, ast.Attribute) and item.attr in OUTLINES}  # fmt: skip
    sets, takes, calls = set(), set(), set()
    for item in inside:
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            sets.add(item.id)
        elif isinstance(item, ast.Name) and item not in outlines:
            takes.add(item.id)
        elif isinstance(item, ast.Call):
            calls |= {item.func.id} if isinstance(item.func, ast.Name) else set()
            calls |= {item.func.attr} if isinstance(item.func, ast.Attribute) else set()
        if isinstance(item, (ast.Attribute, ast.Subscript)) and isinstance(item.ctx, ast.Store):
            sets |= _base(item)
    last = begins - 1 if begins > node.lineno else node.lineno if begins else node.end_lineno
    names = map(frozenset, (sets, takes, calls))
    return _Statement(node.lineno, last or node.lineno, *names)


def _base(node: ast.AST) -> set[str]:
    """The name whose attributes and items are taken."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _helpers(tree: ast.Module, called: set[str], lines: set[int]) -> set[int]:
    """Lines of functions of these names that nothing else calls; one function per name."""
    defined: dict[str, list[ast.stmt]] = {}
    elsewhere: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            defined.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.Name, ast.Attribute)) and node.lineno not in lines:
            elsewhere.add(node.id if isinstance(node, ast.Name) else node.attr)
    alone = [nodes[0] for name, nodes in defined.items()
             if name in called - elsewhere and len(nodes) == 1]  # fmt: skip
    return {number for node in alone for number in range(node.lineno, (node.end_lineno or 0) + 1)}
