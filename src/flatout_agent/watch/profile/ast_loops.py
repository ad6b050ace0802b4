"""Loops in the source of the user's files (`for`, `while` and comprehensions), by their lines."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from flatout_agent.watch.profile.switches import MOST_FILES, parsed

LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class AstLoop:
    """One loop, with the lines that it repeats."""

    file: str
    line: int
    column: int
    first: int
    last: int
    scope: int
    """First line of the enclosing function, or 0 for the module."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number <= self.last


@functools.lru_cache(maxsize=16 * MOST_FILES)
def loops_around(path: str, number: int) -> tuple[AstLoop, ...]:
    """Loops that repeat this line of a file, innermost first, within its function."""
    scope = max((first for first, last in _scopes(path) if first <= number <= last), default=0)
    around = [loop for loop in _loops(path) if number in loop and loop.scope == scope]
    return tuple(sorted(around, key=lambda loop: (loop.last - loop.first, -loop.column)))


@functools.lru_cache(maxsize=MOST_FILES)
def _scopes(path: str) -> tuple[tuple[int, int], ...]:
    """First and last lines of the bodies of functions and classes."""
    tree = parsed(path)
    nodes = ast.walk(tree) if tree is not None else ()
    return tuple(
        (node.body[0].lineno, node.end_lineno or node.lineno)
        for node in nodes
        if isinstance(node, SCOPES)
    )


@functools.lru_cache(maxsize=MOST_FILES)
def _loops(path: str) -> tuple[AstLoop, ...]:
    """The loops in source order, found without recursion: an expression may nest deeper than
    Python's calls can.
    """
    tree = parsed(path)
    loops = []
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)] if tree is not None else []
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, SCOPES):
            scope = node.body[0].lineno
        lines = _repeated(node)
        if lines is not None and isinstance(node, (*LOOPS, *COMPREHENSIONS)):
            loops.append(AstLoop(path, node.lineno, node.col_offset, *lines, scope))
        waiting += [(child, scope) for child in reversed(list(ast.iter_child_nodes(node)))]
    return tuple(loops)


def _repeated(node: ast.AST) -> tuple[int, int] | None:
    """The first and the last line that a loop repeats, or None if it is no loop."""
    if isinstance(node, LOOPS):
        return node.body[0].lineno, node.body[-1].end_lineno or node.lineno
    if isinstance(node, ast.DictComp):
        return node.key.lineno, node.value.end_lineno or node.lineno
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return node.elt.lineno, node.elt.end_lineno or node.lineno
    return None
