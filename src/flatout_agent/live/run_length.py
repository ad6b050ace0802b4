"""How many steps a program takes in total, if its trainer or its own loops show it."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import FrameType
from typing import Any

import torch


@dataclass(frozen=True)
class RunLength:
    """steps_left: at most this many optimizer steps, as a loop may end early. basis: what
    shows it.
    """

    steps_left: int
    basis: str


class Unknown(Exception):  # noqa: N818 - an answer, not an error
    """The number cannot be known without running code of the program."""


def run_length(
    frame: FrameType | None, steps_taken: int, micro_steps: float = 1.0
) -> RunLength | None:
    """The length of the run, from the trainer or the loops among this frame's callers in a step, or
    None if nothing shows it.

    steps_taken: steps so far. micro_steps: iterations of the innermost loop that make a step. Never
    raises, since all of this is other people's code.
    """
    try:
        return _by_trainer(frame) or _by_loops(frame, steps_taken, micro_steps)
    except Exception:  # for example another version of a trainer, or a source that has changed
        return None


# Trainers ---------------------------------------------------------------------------------------


def _by_trainer(frame: FrameType | None) -> RunLength | None:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in TRAINERS:
            steps = TRAINERS[name](frame.f_locals.get("self"))
            return RunLength(int(steps), f"{name.split('.')[0]}'s trainer") if steps > 0 else None
        frame = frame.f_back
    return None


def _of_transformers(trainer: Any) -> float:
    state = trainer.state
    return float(state.max_steps - state.global_step)


def _of_lightning(trainer: Any) -> float:
    left = float(trainer.estimated_stepping_batches - trainer.global_step)
    return left if math.isfinite(left) else 0.0


TRAINERS: Mapping[str, Callable[[Any], float]] = {
    "transformers.trainer": _of_transformers,
    "lightning.pytorch.trainer.trainer": _of_lightning,
    "pytorch_lightning.trainer.trainer": _of_lightning,
}
"""Module of the trainer's methods -> what reads it."""

# Loops ------------------------------------------------------------------------------------------

OWN = (str(PurePath(torch.__path__[0])), str(PurePath(__file__).parents[1]))
"""Loops of torch and of flatout do not count as loops of the program."""
HIDDEN = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions that Python makes of the loops inside an expression."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _by_loops(frame: FrameType | None, steps_taken: int, micro_steps: float) -> RunLength | None:
    turns, lines = 1, list[str]()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OWN):
            if frame.f_code.co_name in HIDDEN or not _tree(frame.f_code.co_filename).body:
                raise Unknown  # a loop that no statement shows
            loops = _loops_around(frame)
            turns *= _turns_of(loops, frame, 1.0 if lines else micro_steps)
            name = PurePath(frame.f_code.co_filename).name
            lines += [f"{name}:{loop.lineno}" for loop in loops]
        if frame.f_code.co_name == "<module>":
            break  # whatever started the script or the notebook cell is not part of the run
        frame = frame.f_back
    steps = math.ceil(turns / max(1.0, micro_steps))
    if not lines or steps <= steps_taken:
        return None
    return RunLength(steps - steps_taken, f"the loop{'s' * (len(lines) > 1)} {', '.join(lines)}")


@functools.lru_cache(maxsize=32)
def _tree(filename: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(filename)))


def _loops_around(frame: FrameType) -> list[ast.For | ast.While]:
    """The loops of this frame's own function around its current line, the innermost first."""
    line = frame.f_lineno
    found: list[ast.For | ast.While] = []
    nodes: list[ast.AST] = list(_tree(frame.f_code.co_filename).body)
    while nodes:
        node = nodes.pop()
        if not isinstance(node, (ast.stmt, ast.excepthandler)):
            continue
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, FUNCTIONS):
            found = []  # the code around a definition does not run it
        if isinstance(node, (ast.For, ast.While)) and line >= node.body[0].lineno:
            found.append(node)
        nodes = list(ast.iter_child_nodes(node))
    return found[::-1]


def _turns_of(loops: list[ast.For | ast.While], frame: FrameType, micro_steps: float) -> int:
    """How many turns the innermost of these loops of one frame takes in all."""
    turns = 1
    for number, loop in enumerate(loops):
        most = _counted_to(loop, loops[: number + 1], frame, micro_steps)
        try:
            turns *= _turns(loop, frame)
        except Unknown:
            if most is None:
                raise
            turns = most
        turns = turns if most is None else min(turns, most)
    return turns


def _counted_to(
    loop: ast.For | ast.While,
    within: list[ast.For | ast.While],
    frame: FrameType,
    micro_steps: float,
) -> int | None:
    """How many turns of the innermost loop a counter allows, or None if none ends the loop.

    within: the loops from the innermost to this one. The counter must grow by one in the innermost
    (each turn, or under a condition: then with each optimizer step) and never begin anew.
    """
    inner, counters = within[0], dict[str, bool]()
    for node in ast.walk(inner):
        if isinstance(node, ast.AugAssign) and ast.unparse(node).endswith("+= 1"):
            counters[ast.unparse(node.target)] = node in inner.body
    match loop:
        case ast.For(target=ast.Tuple(elts=[index, *_]), iter=ast.Call(func=called)):
            if loop is inner and _called(called) == "enumerate":
                counters[ast.unparse(index)] = True
    inside = [*ast.walk(loop)]
    for node in inside:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            counters.pop(ast.unparse(target), None)
    tests = [(loop.test, False)] if isinstance(loop, ast.While) else []
    tests += [
        (node.test, True)
        for node in inside
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Break, ast.Return))
    ]
    for test, ends in tests:
        if not isinstance(test, ast.Compare) or ast.unparse(test.left) not in counters:
            continue
        wanted = (ast.GtE, ast.Gt, ast.Eq) if ends else (ast.Lt, ast.LtE)
        try:
            limit = _value(test.comparators[0], frame)
        except Unknown:
            continue
        if isinstance(test.ops[0], wanted) and isinstance(limit, int):
            every_turn = counters[ast.unparse(test.left)]
            return limit if every_turn else math.ceil(limit * max(1.0, micro_steps))
    return None


def _turns(loop: ast.For | ast.While, frame: FrameType) -> int:
    if isinstance(loop, ast.For):
        return _count(loop.iter, frame)
    test = loop.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Lt, ast.LtE)):
        limit = _value(test.comparators[0], frame)
        if isinstance(limit, int):
            return limit + isinstance(test.ops[0], ast.LtE)
    raise Unknown


THROUGH = ("enumerate", "reversed", "sorted", "iter", "list", "tqdm", "track", "trange", "prange")
"""Calls that yield as many items as their first argument has."""


def _count(expression: ast.expr, frame: FrameType) -> int:
    """The number of iterations of a `for` over this."""
    if isinstance(expression, (ast.List, ast.Tuple, ast.Set)):
        return len(expression.elts)
    if isinstance(expression, ast.Call):
        name = _called(expression.func)
        given = expression.args
        if name in ("range", "trange"):
            return len(range(*(operator.index(_value(argument, frame)) for argument in given)))
        if name == "zip":
            return min(_count(argument, frame) for argument in given)
        if name in THROUGH and given:
            return _count(given[0], frame)
        if name in ("items", "keys", "values") and isinstance(expression.func, ast.Attribute):
            return _count(expression.func.value, frame)
    return _len(_value(expression, frame))


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _len(value: Any) -> int:
    """The length of a value that can be asked for it without running code of the program."""
    if isinstance(value, torch.utils.data.DataLoader):
        if isinstance(value.dataset, torch.utils.data.IterableDataset):
            raise Unknown
        return len(value)
    if isinstance(value, torch.Tensor) or type(value) in (range, list, tuple, dict, set, str):
        return len(value)
    total = vars(value).get("total") if hasattr(value, "__dict__") else None
    if isinstance(total, (int, float)):  # a progress bar
        return int(total)
    if type(value).__module__.partition(".")[0] in ("accelerate", "lightning", "numpy"):
        return len(value)
    raise Unknown


OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """The value of an expression of the program; raises Unknown where that would run its code."""
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if expression.id in names:
                return names[expression.id]
    elif isinstance(expression, ast.Attribute):
        owner = _value(expression.value, frame)
        value = inspect.getattr_static(owner, expression.attr)
        if not hasattr(type(value), "__get__"):
            return value
    elif isinstance(expression, ast.Subscript):
        owner = _value(expression.value, frame)
        if type(owner) in (dict, list, tuple):
            return owner[_value(expression.slice, frame)]
    elif isinstance(expression, ast.BinOp) and type(expression.op) in OPERATORS:
        sides = _number(expression.left, frame), _number(expression.right, frame)
        return OPERATORS[type(expression.op)](*sides)
    elif isinstance(expression, ast.Call):
        name, given = _called(expression.func), expression.args
        if name == "len" and len(given) == 1:
            return _count(given[0], frame)
        if name in FUNCTIONS_OF_NUMBERS and given:
            numbers = [_number(argument, frame) for argument in given]
            return FUNCTIONS_OF_NUMBERS[name](*numbers)
    raise Unknown


def _number(expression: ast.expr, frame: FrameType) -> float:
    value = _value(expression, frame)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise Unknown


FUNCTIONS_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "ceil": math.ceil,
    "floor": math.floor,
    "min": min,
    "max": max,
}
