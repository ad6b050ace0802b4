"""From the calls that a function made to the lines it made them in.

Kineto's stacks name functions, with the line of their `def`. Which line of the body a call
comes from is found in the source: its calls and operators in the order in which Python
evaluates them, beside the events in the order in which they happened.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
BUILT_IN = re.compile(r"^<built-in (?:function|method) (\w+)")
OPTIMIZER = re.compile(r"^Optimizer\.(\w+)#")
MODULE = "nn.Module: "
NOT_MODULES = frozenset(dir(builtins))
OPERATORS = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div", "true_divide", "reciprocal"),
    ast.FloorDiv: ("floor_divide",),
    ast.Mod: ("remainder", "fmod"),
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul", "mm", "bmm", "dot"),
    ast.BitAnd: ("bitwise_and", "__and__"),
    ast.BitOr: ("bitwise_or", "__or__"),
    ast.Invert: ("bitwise_not",),
    ast.USub: ("neg",),
    ast.Gt: ("gt",),
    ast.GtE: ("ge",),
    ast.Lt: ("lt",),
    ast.LtE: ("le",),
    ast.Eq: ("eq",),
    ast.NotEq: ("ne",),
}
SUBSCRIPT = ("index", "select", "slice", "masked_select", "nonzero", "unsqueeze", "alias")
STORED = ("index_put", "index_put_", "copy", "fill", "select", "slice", "masked_fill")
TRUTH = "is_nonzero"
BUILT_INS = {
    **dict.fromkeys(("float", "int", "bool"), ("item", "_local_scalar_dense", TRUTH)),
    **dict.fromkeys(("print", "str", "repr", "format"), ("__repr__", "__str__", "__format__")),
    "iter": ("__iter__",),
    "next": ("__next__",),
    "len": ("__len__",),
}
"""What else they call in a tensor, or in a loader."""
WRITTEN = {"to": ("cuda", "cpu", "type", "float", "half", "bfloat16", "double", "long", "int")}
"""What else an operator may be written as."""


@dataclass(frozen=True)
class Site:
    """One place in a function's body at which something may be called."""

    line: int
    names: frozenset[str]
    call: bool = False
    """Of a name that may stand for any function or module."""
    body: frozenset[str] = frozenset()
    """Of a `for`: what is called inside of it."""


@dataclass(frozen=True)
class Called:
    """One event, as it may be written in the source."""

    names: frozenset[str]
    anything: bool
    """A module, or a function behind a wrapper: the source may say something else."""


def called(event: str) -> Called:
    """How this event may be written."""
    if event.startswith(MODULE):
        return Called(frozenset(), anything=True)
    if found := BUILT_IN.match(event):
        return Called(frozenset({found.group(1)}), anything=False)
    if found := FRAME.match(event):
        return Called(frozenset({found.group("function")}), anything=True)
    if found := OPTIMIZER.match(event):
        return Called(frozenset({found.group(1)}), anything=False)
    name = event.split("::")[-1]
    return Called(frozenset({name, name.rstrip("_"), *WRITTEN.get(name, ())}), anything=False)


def resolve(
    sites: Sequence[Site], events: Sequence[str], inside: Sequence[frozenset[str]] = ()
) -> list[int | None]:
    """The line of each event; None: not found. A loop begins its sites anew.

    `inside`: for each event the names of what it called itself: behind a wrapper stands
    what the source names.
    """
    written: frozenset[str] = frozenset().union(*(site.names for site in sites))
    wanted = [called(event) for event in events]
    wanted = [
        Called(one.names if one.names & written else one.names | more, one.anything)
        for one, more in zip(wanted, inside or [frozenset()] * len(wanted), strict=True)
    ]
    fitting = [bool(one.names & written) for one in wanted]
    named: frozenset[str] = frozenset().union(*(one.names for one in wanted))
    lines: list[int | None] = []
    at = 0
    for one, fits, after in zip(wanted, fitting, [*wanted[1:], None], strict=True):
        found = _next(sites, at, one, fits, named)
        if "__next__" in one.names and after is not None:
            found = _loop(sites, after, found)
        lines.append(None if found is None else sites[found].line)
        at = at if found is None else found + 1
    return lines


def _next(
    sites: Sequence[Site], at: int, one: Called, fits: bool, named: frozenset[str]
) -> int | None:
    """The next site for this event, from `at` on and then from the first again."""
    if not fits and not one.anything:
        return None
    order: list[int] = [*range(at, len(sites)), *range(at)]
    for number in order:
        site = sites[number]
        said, other = one.names & site.names, site.call and not site.names & named
        if (fits and said) or (not fits and other):
            return number
    return None


def _loop(sites: Sequence[Site], after: Called, found: int | None) -> int | None:
    """The innermost `for` whose body makes the call that comes after its next item."""
    sizes = [
        (len(site.body), number) for number, site in enumerate(sites) if site.body & after.names
    ]
    return min(sizes)[1] if sizes else found


@lru_cache(maxsize=1000)
def sites(path: Path, function: str, line: int) -> tuple[Site, ...]:
    """The sites of one function, in the order of evaluation; empty: no such function there."""
    tree = _tree(path)
    found = None if tree is None else _function(tree, function, line)
    if found is None:
        return ()
    walker = _Walker()
    body = found.body if isinstance(found.body, list) else [found.body]
    for statement in body:
        walker.visit(statement)
    return tuple(walker.found)


@lru_cache(maxsize=1000)
def text(path: Path, line: int) -> str:
    """The text of this line, stripped; empty: there is none."""
    lines = _source(path).splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


@lru_cache(maxsize=200)
def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@lru_cache(maxsize=200)
def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(_source(path))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _function(tree: ast.Module, name: str, line: int) -> Function | None:
    """The function of this name around this line, the innermost."""
    if name == "<module>":
        return tree
    found: Function | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            fits = name == "<lambda>"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            fits = node.name == name
        else:
            continue
        decorated = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(item.lineno for item in decorated)])
        if fits and first <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


class _Walker(ast.NodeVisitor):
    """Sites in the order in which Python gets to them; not those of functions inside."""

    def __init__(self) -> None:
        self.found: list[Site] = []

    def _add(self, node: ast.expr | ast.stmt, *names: str) -> None:
        self.found.append(Site(node.lineno, frozenset(names)))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Runs when it is called, not here."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Runs when it is called, not here."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Its methods run when they are called."""

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Runs when it is called, not here."""

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments first."""
        self.generic_visit(node)
        name = _last_name(node.func)
        line = node.func.end_lineno or node.lineno
        known = name in NOT_MODULES
        names = {name, *BUILT_INS.get(name, ())}
        self.found.append(Site(line, frozenset(names), call=bool(name) and not known))

    def visit_For(self, node: ast.For) -> None:
        """The next item is fetched in the line of the `for`."""
        self.visit(node.iter)
        at = len(self.found)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        body: frozenset[str] = frozenset().union(*(site.names for site in self.found[at:]))
        names = frozenset({"__next__", "__iter__", "unbind"})
        self.found.insert(at, Site(node.lineno, names, body=body))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """As a `for`."""
        self.visit(node.iter)
        self._add(node.iter, "__next__", "__iter__", "unbind")
        for condition in node.ifs:
            self.visit(condition)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Operands first."""
        self.generic_visit(node)
        self._add(node, *OPERATORS.get(type(node.op), ()))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Operand first."""
        self.generic_visit(node)
        self._add(node, *OPERATORS.get(type(node.op), (TRUTH,)))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """The value first."""
        self.visit(node.value)
        self._add(node, *OPERATORS.get(type(node.op), ()))

    def visit_Compare(self, node: ast.Compare) -> None:
        """Operands first."""
        self.generic_visit(node)
        self._add(node, *(name for op in node.ops for name in OPERATORS.get(type(op), ())))

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value first, then what it is stored in."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """The index first."""
        self.generic_visit(node)
        self._add(node, *(STORED if isinstance(node.ctx, ast.Store) else SUBSCRIPT))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Views that are written as attributes."""
        self.generic_visit(node)
        if node.attr in ("T", "mT", "H", "mH"):
            self._add(node, "numpy_T", "t", node.attr)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        """A tensor's value is asked for when it is shown."""
        self.generic_visit(node)
        self._add(node.value, "__format__", "__repr__", "item")

    def visit_If(self, node: ast.If | ast.While) -> None:
        """Whether a tensor is true is asked in the line of the `if`."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_While(self, node: ast.While) -> None:
        """As an `if`."""
        self.visit_If(node)


def _last_name(node: ast.expr) -> str:
    """`c` of a.b.c(...); empty: what is called has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
