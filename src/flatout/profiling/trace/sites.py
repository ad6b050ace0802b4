"""The places in a function's body at which something may be called, in order of evaluation."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Arm = tuple[int, int]
"""A branch, and one of its sides."""
FOREIGN = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "transformers", "accelerate"}
    | {"flatout_agent", "flatout_train"}
    | {"lightning", "pytorch_lightning", "lightning_fabric", "torch_xla", "triton", "PIL", "tqdm"}
    | {"timm", "datasets", "pandas", "scipy", "sklearn", "deepspeed", "apex", "cv2", "ignite"}
)
"""Packages that are never user code."""
LIBRARIES = frozenset({"torch", "F", "np", "math"})
METHODS = frozenset(
    {name for kind in (str, list, dict, set) for name in dir(kind)}
    | {"view", "reshape", "transpose", "permute", "contiguous", "to", "cuda", "cpu", "size", "dim"}
    | {"item", "tolist", "numpy", "unsqueeze", "squeeze", "expand", "detach", "clone", "backward"}
    | {"zero_grad", "argmax", "numel", "parameters", "named_parameters", "train", "eval", "flatten"}
    | {"requires_grad_", "masked_fill", "state_dict", "step", "view_as", "type_as", "float", "half"}
)
"""Methods of tensors and containers, hardly ever the name of a module."""
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
"""The methods of a tensor or a loader that these functions call."""


@dataclass(frozen=True)
class Site:
    """One place in a function's body at which something may be called."""

    line: int
    names: frozenset[str]
    call: bool = False
    """Whether it calls a name that may be any function or module."""
    body: frozenset[str] = frozenset()
    """For a `for`: the names that are called inside it."""
    module: bool = False
    """Whether the callee may be a module of the user's."""
    loads: int = 0
    """How likely it asks a loader for a batch: 3 likely, 0 no."""
    arms: tuple[Arm, ...] = ()
    """The enclosing sides of branches, the outermost first."""


@lru_cache(maxsize=1000)
def sites(path: Path, function: str, line: int) -> tuple[Site, ...]:
    """The sites of one function, in order of evaluation; empty if there is no such function."""
    tree = syntax(path)
    function_node = None if tree is None else _function(tree, function, line)
    if function_node is None:
        return ()
    walker = _Walker(_libraries(tree) if tree else LIBRARIES)
    body = function_node.body if isinstance(function_node.body, list) else [function_node.body]
    for statement in body:
        walker.visit(statement)
    return tuple(walker.sites)


@lru_cache(maxsize=1000)
def text(path: Path, line: int) -> str:
    """The text of this line, stripped; empty if there is none."""
    return whole_line(path, line).strip()


@lru_cache(maxsize=1000)
def whole_line(path: Path, line: int) -> str:
    """The unchanged text of this line; empty if there is none."""
    lines = _source(path).splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""


@lru_cache(maxsize=200)
def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@lru_cache(maxsize=200)
def imported_names(path: Path) -> Mapping[str, str]:
    """The names that a file imports, with the package each comes from: np -> numpy."""
    tree, names = syntax(path), dict[str, str]()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                names[alias.asname or package] = package
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(
                (alias.asname or alias.name, node.module.split(".")[0]) for alias in node.names
            )
    return names


@lru_cache(maxsize=200)
def syntax(path: Path) -> ast.Module | None:
    """A file's syntax tree, or None if there is no such file or it is not Python."""
    try:
        return ast.parse(_source(path))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _function(tree: ast.Module, name: str, line: int) -> Function | None:
    """The innermost function of this name around this line."""
    if name == "<module>":
        return tree
    innermost: Function | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            has_name = name == "<lambda>"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_name = node.name == name
        else:
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        if has_name and first <= line <= (node.end_lineno or node.lineno):
            innermost = node
    return innermost


class _Walker(ast.NodeVisitor):
    """Sites in order of evaluation, without those of nested functions."""

    def __init__(self, libraries: frozenset[str]) -> None:
        self.sites: list[Site] = []
        self.libraries = libraries

    def _add(self, node: ast.expr | ast.stmt, *names: str, loads: int = 0) -> None:
        self.sites.append(Site(node.lineno, frozenset(names), loads=loads))

    def _arms(self, node: ast.AST, *sides: Sequence[ast.AST]) -> None:
        """Visit sides of which at most one is taken."""
        number = id(node)
        for side, statements in enumerate(sides):
            start = len(self.sites)
            for statement in statements:
                self.visit(statement)
            arm = ((number, side),)
            self.sites[start:] = [
                replace(site, arms=(*arm, *site.arms)) for site in self.sites[start:]
            ]

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
        is_builtin = name in NOT_MODULES
        names = {name, *BUILT_INS.get(name, ())}
        call = bool(name) and not is_builtin
        module = call and _may_be_module(node.func, self.libraries)
        loads = _loader_likelihood(node.args[0]) if name == "next" and node.args else 0
        self.sites.append(Site(line, frozenset(names), call=call, module=module, loads=loads))

    def visit_For(self, node: ast.For) -> None:
        """Items are fetched in the line of the `for`."""
        self.visit(node.iter)
        start = len(self.sites)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        body: frozenset[str] = frozenset().union(*(site.names for site in self.sites[start:]))
        names = frozenset({"__next__", "__iter__", "unbind"})
        loads = _loader_likelihood(node.iter)
        self.sites.insert(start, Site(node.lineno, names, body=body, loads=loads))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Handled as a `for`."""
        self.visit(node.iter)
        loads = min(max(_loader_likelihood(node.iter) - 1, 0), 1)
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
        """A tensor's value is read when it is formatted."""
        self.generic_visit(node)
        self._add(node.value, "__format__", "__repr__", "item")

    def visit_If(self, node: ast.If) -> None:
        """A tensor's truth value is read in the line of the `if`."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        self._arms(node, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The condition first."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        self._arms(node, [node.body], [node.orelse])

    def visit_Match(self, node: ast.Match) -> None:
        """One of its cases is taken."""
        self.visit(node.subject)
        self._arms(node, *(case.body for case in node.cases))

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        """Items are fetched in its line."""
        self.generic_visit(node)
        self._add(node, "__next__", "__iter__", loads=_loader_likelihood(node.value))

    def visit_While(self, node: ast.While) -> None:
        """Handled as an `if` that is taken."""
        self.visit(node.test)
        self._add(node.test, TRUTH)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)


def _last_name(node: ast.expr) -> str:
    """`c` of a.b.c(...); empty if the callee has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _may_be_module(node: ast.expr, libraries: frozenset[str]) -> bool:
    """Whether it may be a module of the user's, not a library's function or a tensor's method."""
    owner = node
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    root = owner.id if isinstance(owner, ast.Name) else ""  # `a` of a.b.c
    if root in libraries:
        return False
    return not (isinstance(node, ast.Attribute) and root != "self" and node.attr in METHODS)


def _libraries(tree: ast.Module) -> frozenset[str]:
    """Names that this file imports from packages that are not the user's."""
    names = set(LIBRARIES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if _is_library(name.name):
                    names.add(name.asname or name.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_library(node.module or ""):
            names.update(name.asname or name.name for name in node.names)
    return frozenset(names)


def _is_library(name: str) -> bool:
    first = name.split(".")[0]
    return first in FOREIGN or first in sys.stdlib_module_names


def _loader_likelihood(node: ast.expr) -> int:
    """How likely iterating over this asks a loader for a batch: 3 likely, 0 no."""
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict):
        return 0
    words = [child for child in ast.walk(node) if isinstance(child, ast.Name | ast.Attribute)]
    if any("load" in _last_name(word).lower() for word in words):
        return 3
    is_counter = isinstance(node, ast.Call) and _last_name(node.func) in COUNTERS
    return 0 if is_counter else 2
