"""What an error says to do next can be done: its commands parse, and nothing is left to fill in.

Collected from the source: the next step of every UserError and its like, and the commands of every
Cure. What is put in when it happens stands as a 2, which is a number, a name and a path.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from flatout import commands
from law.sources import FILES, name, tree

PLACES = {
    "UserError": (1, "next_step"),
    "PlanError": (1, "next_step"),
    "Refused": (1, "next_step"),
    "error": (1, "next_step"),
    "next_step": (0, "step"),
    "Cure": (1, "commands"),
}
"""Where the next step stands among the arguments of what shows it."""
PUT_IN = "2"
VERB = "tune"
"""For the command that was called, where a message is common to several."""
COMMAND = re.compile(rf"\bflatout ({'|'.join(commands.names())})\b(?: [^;`]*)?")
"""A command, to the end of its part of the sentence."""
PROSE = re.compile(
    r",(?: |$)|: | [|>] |\s(?:and|does|for|has|in|lists|makes|needs|of|on|or|reads|says|starts|to"
    r"|where|with|writes)\s"
)
"""Where the line ends, or the sentence goes on behind it."""
ALONE = {"--capture", "--list", "--follow", "--cancel"}
"""Options with which a command runs no script."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = re.compile(r"\b(?:ray|sinfo|sky|squeue|srun|ssh|uv) [^;]*")
"""Other programs' command lines have options of their own."""
FILL_IN = re.compile(r"(?<![\w-])--[a-z-]+[ =](?:\w+=)?([A-Z]{2,})\b(?!=[a-z\d])|[ /]([A-Z]{2,})\b")
"""A word in capitals where a value must stand."""


class Step(NamedTuple):
    """What a user is told to do next."""

    where: str
    text: str
    cure: bool
    """Of a finding: its commands are mostly other programs'."""


@cache
def steps() -> frozenset[Step]:
    """Every next step."""
    return frozenset(
        Step(f"{name(path)}:{call.lineno}", text, word == "Cure")
        for path in FILES
        for call, scope in _calls(tree(path), tree(path))
        if (word := _word(call.func)) in PLACES and (step := _step(call, *PLACES[word])) is not None
        for text in _texts(step, path, scope)
    )


def _calls(node: ast.AST, scope: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """All calls, each with the innermost function around it, or the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scope
        yield from _calls(child, child if isinstance(child, ast.FunctionDef) else scope)


def _word(function: ast.expr) -> str:
    return str(getattr(function, "id", getattr(function, "attr", "")))


def _step(call: ast.Call, place: int, keyword: str) -> ast.expr | None:
    named = (item.value for item in call.keywords if item.arg == keyword)
    return call.args[place] if len(call.args) > place else next(named, None)


def _texts(node: ast.AST, path: Path, scope: ast.AST, deep: int = 5) -> list[str]:
    """All texts that an expression may be, as far as they are written in its file."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(_put_in(part, path) for part in node.values)]
    if isinstance(node, ast.BinOp):
        sides = [_texts(side, path, scope, deep) or [PUT_IN] for side in (node.left, node.right)]
        return ["".join(pair) for pair in product(*sides)]
    inner = _inner(node, path, scope) if deep else []
    found = [text for item, where in inner for text in _texts(item, path, where, deep - 1)]
    return [re.sub(r"\{\w*\}", PUT_IN, text) for text in found]  # of `format`


def _inner(node: ast.AST, path: Path, scope: ast.AST) -> list[tuple[ast.expr, ast.AST]]:
    """The expressions of which one is the value, each with the function that it stands in."""
    if isinstance(node, ast.IfExp):
        return [(node.body, scope), (node.orelse, scope)]
    if isinstance(node, ast.BoolOp):
        return [(item, scope) for item in node.values]
    if isinstance(node, ast.Tuple | ast.List):
        return [(item, scope) for item in node.elts]
    if isinstance(node, ast.Name):
        given = _assigned(node.id, scope) or _assigned(node.id, tree(path))
        return [(item, scope) for item in given]
    if not isinstance(node, ast.Call):
        return []
    if isinstance(node.func, ast.Attribute):
        return [(node.func.value, scope)] if node.func.attr == "format" else []
    return [
        (item.value, function)
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef) and function.name == _word(node.func)
        for item in ast.walk(function)
        if isinstance(item, ast.Return) and item.value is not None
    ]


def _put_in(part: ast.expr, path: Path) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Name) and value.id == "verb":
        return VERB
    return next(iter(_texts(value, path, tree(path))), PUT_IN)


def _assigned(word: str, scope: ast.AST) -> list[ast.expr]:
    """What a name is given in a function, or at the top of a module."""
    inside = ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ast.iter_child_nodes(scope)
    found: list[ast.expr] = []
    for node in inside:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if _word(target) == word:
                found.append(node.value)  # type: ignore[attr-defined]
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):  # type: ignore[attr-defined]
                pairs = zip(target.elts, node.value.elts, strict=False)  # type: ignore[attr-defined]
                found += [value for item, value in pairs if _word(item) == word]
    return found


@cache
def group(verb: str) -> Any:
    return typer.main.get_command(commands.application(verb))


@cache
def options(verb: str) -> set[str]:
    known = group(verb).commands[verb]
    parts = (known, *getattr(known, "commands", {}).values())
    return {"--help"} | {word for part in parts for item in part.params for word in item.opts}


def refused(verb: str, words: list[str]) -> str | None:
    """Why the command line does not take these words; None: it does."""
    known = group(verb).commands[verb]
    try:
        context = known.make_context(verb, [*words])
    except typer.Exit:
        return None  # --help
    except typer.TyperException as error:
        return error.format_message()
    of_script = commands.SCRIPT_CONTEXT.keys() <= (known.context_settings or {}).keys()
    alone = context.args or ALONE.intersection(words) or not of_script
    return None if alone else "no script is named"


def faults(step: Step) -> Iterator[str]:
    """What is wrong with a next step."""
    for match in COMMAND.finditer(step.text):
        line = PROSE.split(match[0])[0]
        why = refused(match[1], shlex.split(line, comments=True)[2:])
        left = FILL_IN.search(line)
        if why or left:
            yield f"{step.where}: {line}: {why or 'a word is left to fill in'}"
    if step.cure:
        return
    rest = COMMAND.sub("", FOREIGN.sub("", step.text))
    own = re.match(r"flatout/commands/([a-z]+)\.py", step.where)
    verbs = [own[1]] if own else commands.names()
    for option in OPTION.findall(rest):
        if not any(option in options(verb) for verb in verbs):
            yield f"{step.where}: there is no {option}: {step.text}"
    left = FILL_IN.search(rest)
    if left and left[1]:
        yield f"{step.where}: {left[1]} is left to fill in: {step.text}"


def test_each_can_be_followed() -> None:
    assert len(steps()) > 400
    assert sorted(fault for step in steps() for fault in faults(step)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("flatout explain LOG", "fill in"),
        ("give it another: --name NAME", "fill in"),
        ("flatout tune", "no script"),
        ("look: flatout doctor --every", "--every"),
        ("give it more time with --time-limit", "--time-limit"),
    ],
)
def test_what_cannot_be_followed_is_seen(text: str, fault: str) -> None:
    assert fault in " ".join(faults(Step("flatout/nouns/errors.py:1", text, False)))
