"""Arrays and tables that a line extends by replacing them with a new, longer one."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

from flatout.profiling.kinds_of_values import SourceFiles, last_name, root
from flatout_agent import wire

PACKAGES = frozenset({"numpy", "pandas", "cupy", "polars", "awkward", "xarray"})
JOINS = frozenset(
    {"concatenate", "append", "vstack", "hstack", "dstack", "column_stack", "row_stack", "insert"}
    | {"concat"}
)
"""Functions that copy everything they are given into a longer result."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
LOOPS = ast.For | ast.While


def grows(files: SourceFiles, frame: wire.FrameSeen, package: str, function: str) -> bool:
    """Whether this call of a package, in such a statement, does the copying."""
    copies = package in PACKAGES and function in JOINS
    return copies and frame.line in _growing_lines(files, frame.file)


@functools.lru_cache(maxsize=100)
def _growing_lines(files: SourceFiles, file: str) -> frozenset[int]:
    tree = files.tree(file)
    return lines(tree, files.aliases(file)) if tree is not None else frozenset()


def lines(tree: ast.Module, packages: Mapping[str, str]) -> frozenset[int]:
    """The lines of statements that extend an array or table by a copy.

    The new value is made of the old one or a part of it. The target is an attribute, a key or a
    global name, or nothing else in the loop assigns it: what each step creates anew does not grow.

    packages: the names that the file imports: np -> numpy.
    """
    growing: set[int] = set()
    for statement, function, loop in _statements(tree, tree, None):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if len(targets) != 1 or not _joins(statement.value, targets[0], packages):
            continue
        if _stays(targets[0], statement, function, loop):
            growing.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return frozenset(growing)


def _statements(
    node: ast.AST, function: ast.AST, loop: ast.AST | None
) -> Iterator[tuple[ast.AST, ast.AST, ast.AST | None]]:
    """All statements, with the enclosing function and innermost loop."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, function, loop
        if isinstance(child, FUNCTIONS):
            yield from _statements(child, child, None)
        elif not isinstance(child, ast.expr):
            yield from _statements(child, function, child if isinstance(child, LOOPS) else loop)


def _joins(value: ast.expr, target: ast.expr, packages: Mapping[str, str]) -> bool:
    """Whether a value is such a call, or part of its result, with the target as an argument.

    `x = np.concatenate([x, y])[-n:]`, `x = np.append(x, y)`, `x = pd.concat([x, y])`.
    """
    while isinstance(value, ast.Subscript):
        value = value.value
    if not isinstance(value, ast.Call) or last_name(value.func) not in JOINS:
        return False
    if packages.get(root(value.func)) not in PACKAGES:
        return False
    parts = [
        part
        for argument in (*value.args, *(keyword.value for keyword in value.keywords))
        for part in (argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument])
    ]
    name = ast.unparse(target)
    return any(_is_part(part, name) for part in parts)


def _is_part(part: ast.expr, name: str) -> bool:
    """Whether it is this name's value or a part of it: x, x[1:]."""
    while ast.unparse(part) != name:
        if not isinstance(part, ast.Subscript):
            return False
        part = part.value
    return True


def _stays(target: ast.expr, statement: ast.AST, function: ast.AST, loop: ast.AST | None) -> bool:
    """Whether the additions still exist when the statement runs again."""
    owner = target
    while isinstance(owner, ast.Attribute | ast.Subscript):
        owner = owner.value
    if not isinstance(owner, ast.Name):
        return False
    if isinstance(target, ast.Attribute | ast.Subscript) and owner.id in ("self", "cls"):
        return True
    bound = [node for node in ast.walk(function) if _binds(node, owner.id)]
    if not bound or any(isinstance(node, ast.Global | ast.Nonlocal) for node in bound):
        return True
    return loop is not None and not any(
        isinstance(node, ast.Name)
        and _binds(node, owner.id)
        and not _of_itself(node, loop, statement)
        for node in ast.walk(loop)
    )


def _binds(node: ast.AST, name: str) -> bool:
    """Whether it makes a name local to the function, or declares it global or nonlocal."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return name in node.names
    if isinstance(node, ast.arg):
        return node.arg == name
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _of_itself(name: ast.Name, loop: ast.AST, statement: ast.AST) -> bool:
    """Whether this assigns a name a part of its own value, x = x[-n:], or is the statement itself.

    The other branch of the statement's condition also counts, as at the start of the first round.
    """
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and any(name is target for target in node.targets):
            return node is statement or _is_part(node.value, name.id)
        if isinstance(node, ast.If) and statement in node.orelse:
            first = (inner for part in node.body for inner in ast.walk(part))
            if any(name is inner for inner in first):
                return True
    return False
