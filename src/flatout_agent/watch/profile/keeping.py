"""Finds the user's statement that keeps the losses, from the program's source.

The search goes from the call of `backward` outwards along the stack. It follows the loss's name in
each function, its assignments, and the functions it is passed to, until one of these goes into a
list, a dictionary or a running sum as a tensor.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from flatout_agent.watch.profile.switches import MOST_FILES, parsed, user_files

APPENDING = (
    "append", "add", "appendleft", "extend", "insert", "put", "put_nowait", "setdefault", "push",
    "update",
)  # fmt: skip
GRAPH_KEPT = (
    "clone", "cpu", "cuda", "to", "float", "double", "half", "mean", "sum", "squeeze", "view",
    "reshape", "unsqueeze", "stack", "cat",
)  # fmt: skip
"""Methods whose result holds the graph of its inputs."""
CONTAINERS = ("dict", "list", "tuple")
DEPTH = 3
"""The most nested functions that a loss is followed into."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class CallSite:
    """A line of a function that is being executed."""

    path: str
    line: int
    function: str


def keeping_place(stack: Sequence[CallSite]) -> tuple[str, int] | None:
    """File and line of the statement that keeps the loss, or None if none is found.

    stack: from the line that calls `backward` outwards.
    """
    names: set[str] = set()
    inner: Function | None = None
    for number, site in enumerate(stack):
        tree = parsed(site.path)
        if tree is None:
            return None
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and node.lineno <= site.line <= (node.end_lineno or 0)
        ]
        scope = _enclosing(tree, site.line)
        if number == 0:
            names = _trained_on(calls)
        else:
            names = _in_caller(tree, calls, names, inner, stack[number - 1].function)
        if not names:
            return None
        place = _nearest(site, scope, names) or (
            _nearest(site, tree, names) if number == 0 else None
        )
        if place is not None:
            return place
        inner = scope if isinstance(scope, Function) else None
    return None


def _nearest(site: CallSite, scope: ast.AST, names: set[str]) -> tuple[str, int] | None:
    places = list(_places(scope, site.path, names, DEPTH))
    return min(places, key=lambda at: (at[0] != site.path, abs(at[1] - site.line)), default=None)


def _enclosing(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function that contains the line, or the module."""
    holding = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(holding, key=lambda node: node.lineno, default=tree)


def _trained_on(calls: list[ast.Call]) -> set[str]:
    """The object or argument of `backward`: loss, self.loss, out["loss"]."""
    names: set[str] = set()
    for call in calls:
        name = _name(call)
        if name == "backward" or name.endswith("_backward"):
            values = list(call.args[:1])
            if isinstance(call.func, ast.Attribute):
                values.append(call.func.value)
            for value in values:
                names |= _operands(value)
    return names


def _operands(value: ast.AST) -> set[str]:
    """The names in an expression; `loss` for `scaler.scale(loss / 4)`."""
    if isinstance(value, ast.Call):
        inner = (*value.args, *([value.func.value] if isinstance(value.func, ast.Attribute) and not
                                value.args else []))  # fmt: skip
        return {name for item in inner for name in _operands(item)}
    if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        return {ast.unparse(value)}
    if isinstance(value, ast.BinOp):
        return _operands(value.left) | _operands(value.right)
    return set()


def _in_caller(
    tree: ast.Module, calls: list[ast.Call], names: set[str], inner: Function | None, called: str
) -> set[str]:
    """The names that the caller of `inner` uses for the losses called `names` in it."""
    if inner is None:
        return set()
    found: set[str] = set()
    parts = _given_back(inner, names)
    for call in calls:
        if _name(call) not in (called, inner.name):
            continue
        for parameter, value in _arguments(call, inner):
            if parameter in names:
                found |= _operands(value)
        found |= {ast.unparse(call) + part for part in parts}
        for node in ast.walk(tree) if parts else ():
            if isinstance(node, ast.Assign) and node.value is call:
                found |= {text + part for text in _targets(node.targets[0]) for part in parts}
    return found


def _given_back(function: Function, names: Collection[str]) -> set[str]:
    """How the caller reaches one of these in the result: directly, or as ["loss"] of a dict."""
    parts: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        text = ast.unparse(node.value)
        parts |= {name[len(text) :] for name in names if name.startswith(f"{text}[")}
        if _bare(node.value, names):
            parts.add("")
    return parts


def _places(scope: ast.AST, path: str, names: set[str], depth: int) -> Iterator[tuple[str, int]]:
    """The statements that keep one of these names, in this scope or in functions that it is passed
    to.
    """
    direct = _keeping_lines(scope, names)
    aliases = names
    for _ in range(3):
        if not direct:
            aliases = aliases | {alias for node in ast.walk(scope) for alias in _new(node, aliases)}
            direct = _keeping_lines(scope, aliases)
    yield from ((path, line) for line in direct)
    for node in ast.walk(scope) if depth and not direct else ():
        if isinstance(node, ast.Call) and _passes(node, aliases):
            yield from _inside(node, aliases, depth - 1)


def _keeping_lines(scope: ast.AST, names: Collection[str]) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, (ast.stmt, ast.expr)) and _keeps(node, names)
    ]


def _passes(call: ast.Call, names: Collection[str]) -> bool:
    values = (*call.args, *(word.value for word in call.keywords))
    return any(_bare(value, names) for value in values)


def _inside(call: ast.Call, names: set[str], depth: int) -> Iterator[tuple[str, int]]:
    """The keeping statements in the user's functions with the called name."""
    for _, path in user_files():
        for function in _functions(path).get(_name(call), ()):
            values = _arguments(call, function)
            inner = {parameter for parameter, value in values if _bare(value, names)}
            if inner:
                yield from _places(function, path, inner, depth)


@functools.lru_cache(maxsize=MOST_FILES)
def _functions(path: str) -> dict[str, list[Function]]:
    """The functions of a file by name, cached since each call that may keep something looks for
    them.
    """
    functions: dict[str, list[Function]] = {}
    tree = parsed(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, Function):
            functions.setdefault(node.name, []).append(node)
    return functions


def _arguments(call: ast.Call, function: Function) -> list[tuple[str, ast.expr]]:
    """(parameter, value) of a call."""
    arguments = function.args
    parameters = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
    if parameters and isinstance(call.func, ast.Attribute) and _bound(call, function):
        parameters = parameters[1:]
    rest = arguments.vararg.arg if arguments.vararg is not None else ""
    named = {item.arg for item in (*arguments.args, *arguments.kwonlyargs)}
    words = arguments.kwarg.arg if arguments.kwarg is not None else ""
    pairs = [
        (parameters[index] if index < len(parameters) else rest, value)
        for index, value in enumerate(call.args)
    ]
    return pairs + [(word.arg if word.arg in named and word.arg else words, word.value)
                    for word in call.keywords]  # fmt: skip


def _bound(call: ast.Call, function: Function) -> bool:
    """Whether the first parameter is the object that the method is called on."""
    first = (*function.args.posonlyargs, *function.args.args)[0].arg
    if first in ("self", "cls"):
        return True
    uses = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
    owned = any(isinstance(node.value, ast.Name) and node.value.id == first for node in uses)
    return owned and len(call.args) < len(function.args.args)


def _keeps(node: ast.AST, names: Collection[str]) -> bool:
    """A statement that adds one of these to something that outlives the step."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) not in names and _bare(node.value, names)
    if isinstance(node, ast.Call):
        if _name(node) not in APPENDING or not isinstance(node.func, ast.Attribute):
            return False
        return _passes(node, names) and not _is_users(_name(node))
    if not isinstance(node, ast.Assign) or not _bare(node.value, names):
        return False
    target = node.targets[0]
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
        return True
    text = ast.unparse(target)
    inside = (item for item in ast.walk(node.value) if isinstance(item, ast.expr))
    return text not in names and any(ast.unparse(item) == text for item in inside)


def _is_users(name: str) -> bool:
    """Whether a function of the user's has this name; its effect is looked up there."""
    return any(name in _functions(path) for _, path in user_files())


def _new(node: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Other names that a statement gives to one of these, or to something that holds it."""
    if isinstance(node, ast.For):
        inside = (item for item in ast.walk(node.iter) if isinstance(item, ast.expr))
        if any(ast.unparse(item) in names for item in inside):
            yield from _targets(node.target)
    if not isinstance(node, ast.Assign):
        return
    if _bare(node.value, names):
        for target in node.targets:
            constant = isinstance(target, ast.Subscript)
            yield from [ast.unparse(target.value)] if constant else _targets(target)  # type: ignore[attr-defined]  # a Subscript
    texts = {text for target in node.targets for text in _targets(target)}
    if texts & set(names) and isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript)):
        yield ast.unparse(node.value)


def _targets(target: ast.AST) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [text for item in target.elts for text in _targets(item)]
    return [ast.unparse(target)]


def _bare(value: ast.AST, names: Collection[str]) -> bool:
    """Whether an expression holds one of these unchanged; `loss.item()` does not."""
    if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) and (
        ast.unparse(value) in names
    ):
        return True
    if isinstance(value, (ast.Attribute, ast.Subscript)):
        return False
    if isinstance(value, ast.Call):
        owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
        if _name(value) not in (GRAPH_KEPT if owner else CONTAINERS) and (
            not _name(value)[:1].isupper()
        ):
            return False
        return _passes(value, names) or any(_bare(item, names) for item in owner)
    return any(_bare(child, names) for child in ast.iter_child_nodes(value))


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))
