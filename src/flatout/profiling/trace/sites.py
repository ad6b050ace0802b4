"""The places in a function's body at which something may be called, in order of evaluation."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Arm = tuple[int, int]
"""Which branch, and which of its sides."""
FOREIGN = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "transformers", "accelerate"}
    | {"flatout_agent", "flatout_train"}
    | {"lightning", "pytorch_lightning", "lightning_fabric", "torch_xla", "triton", "PIL", "tqdm"}
    | {"timm", "datasets", "pandas", "scipy", "sklearn", "deepspeed", "apex", "cv2", "ignite"}
)
"""Packages that are never the user's own."""
LIBRARIES = frozenset({"torch", "F", "np", "math"})
METHODS = frozenset(
    {name for kind in (str, list, dict, set) for name in dir(kind)}
    | {"view", "reshape", "transpose", "permute", "contiguous", "to", "cuda", "cpu", "size", "dim"}
    | {"item", "tolist", "numpy", "unsqueeze", "squeeze", "expand", "detach", "clone", "backward"}
    | {"zero_grad", "argmax", "numel", "parameters", "named_parameters", "train", "eval", "flatten"}
    | {"requires_grad_", "masked_fill", "state_dict", "step", "view_as", "type_as", "float", "half"}
)
"""What is called on tensors and containers, and is hardly ever the name of a module."""
COUNTERS = frozenset(
    {"range", "zip", "reversed", "sorted", "parameters", "items", "values", "keys"}
)
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


@dataclass(frozen=True)
class Site:
    """One place in a function's body at which something may be called."""

    line: int
    names: frozenset[str]
    call: bool = False
    """Of a name that may stand for any function or module."""
    body: frozenset[str] = frozenset()
    """Of a `for`: what is called inside of it."""
    module: bool = False
    """What is called may be a module of the user's."""
    loads: int = 0
    """Whether this may ask a loader for a batch: 3 likely, 0 no."""
    arms: tuple[Arm, ...] = ()
    """The sides of branches that it is in, the outermost first."""


@lru_cache(maxsize=1000)
def sites(path: Path, function: str, line: int) -> tuple[Site, ...]:
    """The sites of one function, in the order of evaluation; empty: no such function there."""
    tree = _tree(path)
    found = None if tree is None else _function(tree, function, line)
    if found is None:
        return ()
    walker = _Walker(_libraries(tree) if tree else LIBRARIES)
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

    def __init__(self, libraries: frozenset[str]) -> None:
        self.found: list[Site] = []
        self.libraries = libraries

    def _add(self, node: ast.expr | ast.stmt, *names: str, loads: int = 0) -> None:
        self.found.append(Site(node.lineno, frozenset(names), loads=loads))

    def _arms(self, node: ast.AST, *sides: Sequence[ast.AST]) -> None:
        """Sides of which one is taken, at most."""
        number = id(node)
        for side, inside in enumerate(sides):
            at = len(self.found)
            for statement in inside:
                self.visit(statement)
            arm = ((number, side),)
            self.found[at:] = [replace(one, arms=(*arm, *one.arms)) for one in self.found[at:]]

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
        call = bool(name) and not known
        module = call and _may_be_module(node.func, self.libraries)
        loads = _loads(node.args[0]) if name == "next" and node.args else 0
        self.found.append(Site(line, frozenset(names), call=call, module=module, loads=loads))

    def visit_For(self, node: ast.For) -> None:
        """The next item is fetched in the line of the `for`."""
        self.visit(node.iter)
        at = len(self.found)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        body: frozenset[str] = frozenset().union(*(site.names for site in self.found[at:]))
        names = frozenset({"__next__", "__iter__", "unbind"})
        loads = _loads(node.iter)
        self.found.insert(at, Site(node.lineno, names, body=body, loads=loads))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """As a `for`."""
        self.visit(node.iter)
        loads = min(max(_loads(node.iter) - 1, 0), 1)
        self._add(node.iter, "__next__", "__iter__", "unbind", loads=loads)
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

    def visit_If(self, node: ast.If) -> None:
        """Whether a tensor is true is asked in the line of the `if`."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        self._arms(node, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The condition first."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        self._arms(node, [node.body], [node.orelse])

    def visit_Match(self, node: ast.Match) -> None:
        """One of its cases."""
        self.visit(node.subject)
        self._arms(node, *(case.body for case in node.cases))

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        """Items are fetched in its line."""
        self.generic_visit(node)
        self._add(node, "__next__", "__iter__", loads=_loads(node.value))

    def visit_While(self, node: ast.While) -> None:
        """As an `if` that is taken."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)


def _last_name(node: ast.expr) -> str:
    """`c` of a.b.c(...); empty: what is called has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """`a` of a.b.c; empty: it has no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _may_be_module(node: ast.expr, libraries: frozenset[str]) -> bool:
    """A library's function is no module of the user's; nor is a method of a tensor's."""
    root = _root(node)
    if root in libraries:
        return False
    method = isinstance(node, ast.Attribute) and root != "self" and node.attr in METHODS
    return not method


def _libraries(tree: ast.Module) -> frozenset[str]:
    """Names that this file imports from packages which are not the user's."""
    found = set(LIBRARIES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if _is_library(name.name):
                    found.add(name.asname or name.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_library(node.module or ""):
            found.update(name.asname or name.name for name in node.names)
    return frozenset(found)


def _is_library(name: str) -> bool:
    first = name.split(".")[0]
    return first in FOREIGN or first in sys.stdlib_module_names


def _loads(node: ast.expr) -> int:
    """Whether going through this may ask a loader for a batch: 3 likely, 0 no."""
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict):
        return 0
    words = [item for item in ast.walk(node) if isinstance(item, ast.Name | ast.Attribute)]
    if any("load" in _last_name(word).lower() for word in words):
        return 3
    counting = isinstance(node, ast.Call) and _last_name(node.func) in COUNTERS
    return 0 if counting else 2
