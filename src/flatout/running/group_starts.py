"""Whether a source starts a group of processes: surely, perhaps, or not, as far as names tell.

A call counts where its function is used, directly or through others. It is sure where no condition
stands before it on the way: many scripts start their group only if a flag or a variable says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

GROUPS = re.compile(r"init_process_group|init_device_mesh|init_distributed\w*")
"""Functions that start a group of processes."""


class Certainty(IntEnum):
    """That something is done when the script runs."""

    NO = 0
    PERHAPS = 1
    SURE = 2


class _Use(NamedTuple):
    """A name that stands in the source to be used."""

    name: str
    certainty: Certainty
    """Where what it stands in is run."""
    inside: tuple[str, ...]
    """The classes and functions that it stands in."""
    starts: bool = False
    """It is called, and starts a group."""


def starts(trees: Iterable[ast.Module]) -> Certainty:
    """Whether the script starts a group. trees: of the script and its own modules."""
    uses = [use for tree in trees for use in _block(tree.body, Certainty.SURE, ())]
    known: dict[str, Certainty] = {}
    while True:
        better = dict(known)
        for use in uses:
            found = _reached(use, known)
            better[use.name] = max(found, better.get(use.name, Certainty.NO))
        if better == known:
            break
        known = better
    own = {name for use in uses for name in use.inside}  # what those do is seen inside of them
    calls = [use for use in uses if use.starts and use.name not in own]
    return max((_reached(use, known) for use in calls), default=Certainty.NO)


def _reached(use: _Use, known: dict[str, Certainty]) -> Certainty:
    """Python itself calls `__init__` and its like."""
    around = (known.get(name, Certainty.NO) for name in use.inside if not name.startswith("__"))
    return min([use.certainty, *around])


def _block(
    statements: list[ast.stmt], certainty: Certainty, inside: tuple[str, ...]
) -> Iterator[_Use]:
    for statement in statements:
        yield from _statement(statement, certainty, inside)
        if _may_leave(statement):
            certainty = min(certainty, Certainty.PERHAPS)


def _statement(
    statement: ast.stmt, certainty: Certainty, inside: tuple[str, ...]
) -> Iterator[_Use]:
    perhaps = min(certainty, Certainty.PERHAPS)
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from _block(statement.body, Certainty.SURE, (*inside, statement.name))
        case ast.If():
            yield from _names(statement.test, certainty, inside)
            main = certainty if _is_main(statement.test) else perhaps
            yield from _block(statement.body, main, inside)
            yield from _block(statement.orelse, perhaps, inside)
        case ast.With() | ast.AsyncWith():
            for item in statement.items:
                yield from _names(item, certainty, inside)
            yield from _block(statement.body, certainty, inside)
        case ast.Try():
            yield from _block([*statement.body, *statement.finalbody], certainty, inside)
            for handler in statement.handlers:
                yield from _block(handler.body, perhaps, inside)
            yield from _block(statement.orelse, perhaps, inside)
        case ast.For() | ast.AsyncFor() | ast.While():
            yield from _block([*statement.body, *statement.orelse], perhaps, inside)
        case ast.Match():
            for each in statement.cases:
                yield from _block(each.body, perhaps, inside)
        case _:
            yield from _names(statement, certainty, inside)


def _names(node: ast.AST, certainty: Certainty, inside: tuple[str, ...]) -> Iterator[_Use]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            name = _name(each.func)
            if GROUPS.fullmatch(name):
                yield _Use(name, certainty, inside, starts=True)
        elif isinstance(each, ast.Name | ast.Attribute):
            yield _Use(_name(each), certainty, inside)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main(test: ast.expr) -> bool:
    """Whether it asks for `__name__`: the script itself is what runs."""
    return any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(test))


def _may_leave(statement: ast.stmt) -> bool:
    """Whether what follows may not be run: there is a return in it, under a condition."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(isinstance(each, ast.Return) for each in ast.walk(statement))
