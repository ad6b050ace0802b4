"""Finds, in the source of the user's files, where float64 data used by the step was made.

The data flow of the counted steps begins after the data was made. From the line that uses it, or
from the loop over its loader, the names are followed back through assignments, arguments and data
sets to the call that made the tensor. If anything is unclear, no line is given.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.switches import WIDE, parsed

CONVERTS = ("from_numpy", "as_tensor", "tensor", "frombuffer", "from_dlpack")
"""Functions that keep NumPy's float64 if no dtype is given."""
SAME = ("Subset", "random_split", "enumerate", "iter", "next", "tqdm", "list", "cycle", "islice")
"""Calls that return their first argument's data."""
NARROWS = ("float", "half", "bfloat16", "type", "long", "int", "bool")
"""Methods after which data is no longer, or perhaps not, float64."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEEPEST = 24
LINE = re.compile(r"(.+):(\d+)")
PART = re.compile(r"\[(\d+|\".*?\")\]")


def with_made_lines(flow: wire.FlowSeen | None, loader_where: str | None) -> wire.FlowSeen | None:
    """The same, with the lines that made its float64 data if they are clear."""
    if flow is None or not flow.doubles:
        return flow
    return dataclasses.replace(
        flow,
        doubles=tuple(
            dataclasses.replace(row, made_where=made_line(row, loader_where))
            for row in flow.doubles
        ),
    )


def made_line(row: wire.DoubleSeen, loader_where: str | None) -> str | None:
    """file:line that makes the data of a row, or None if it is unclear or no data."""
    if row.what not in ("batch", "tensor"):
        return None
    match = LINE.fullmatch((loader_where if row.what == "batch" else row.where) or "")
    tree = parsed(os.path.join(places.STARTED_IN, match[1])) if match else None  # noqa: PTH118
    if match is None or tree is None:
        return None
    text = _Text(match[1], tree)
    lines = text.of_batch(int(match[2]), row.part) if row.what == "batch" else None
    if row.what == "tensor":
        lines = text.of_line(int(match[2]))
    return f"{match[1]}:{lines.pop()}" if lines is not None and len(lines) == 1 else None


@dataclass(frozen=True)
class _Text:
    """The syntax tree of one file."""

    name: str
    tree: ast.Module

    def of_batch(self, number: int, part: str) -> set[int]:
        """Lines that make a field of the items in the loop on this line."""
        index = PART.match(part)
        for node in ast.walk(self.tree):
            over = getattr(node, "iter", None)
            if isinstance(over, ast.expr) and over.lineno <= number <= (over.end_lineno or 0):
                return self._field(over, self._scope(number), index[1] if index else "", DEEPEST)
        return set()

    def of_line(self, number: int) -> set[int]:
        """Lines that make the values used on this line; none if something may be made elsewhere."""
        scope = self._scope(number)
        nodes = [node for node in ast.walk(self.tree) if getattr(node, "lineno", 0) == number]
        beside = {node.func for node in nodes if isinstance(node, ast.Call)}
        slices = (node.slice for node in nodes if isinstance(node, ast.Subscript))
        beside |= {part for slice_ in slices for part in ast.walk(slice_)}  # type: ignore[misc]
        lines: set[int] = set()
        for node in nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or node in beside:
                continue
            made = self._made(node, scope, DEEPEST) if isinstance(node.ctx, ast.Load) else set()
            if not made and isinstance(node.ctx, ast.Load) and not self._is_narrow(node, scope):
                return set()
            lines |= made
        return lines

    def _is_narrow(self, node: ast.expr, scope: ast.AST) -> bool:
        """Whether the source of this value is known and gives no float64 or no data."""
        values = [value for value, _ in self._values(node, scope)]
        given = (
            isinstance(scope, FUNCTIONS)
            and isinstance(node, ast.Name)
            and any(argument.arg == node.id != "self" for argument in scope.args.args)
        )
        calls = (value for value in values if isinstance(value, ast.Call))
        modules = {value for value in calls if _called(value)[:1].isupper() or _narrows(value)}
        plain = modules.union(value for value in values if isinstance(value, ast.Constant))
        return not (given and not values) and all(value in plain for value in values)

    def _scope(self, number: int) -> ast.AST:
        """The innermost function around a line; else the module."""
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, FUNCTIONS) and node.lineno <= number <= (node.end_lineno or 0)
        ]
        return max(around, key=lambda node: node.lineno, default=self.tree)

    def _field(self, value: ast.expr, scope: ast.AST, part: str, depth: int) -> set[int]:
        """Lines that make this field of the batches of a loader or a data set."""
        if depth <= 0:
            return set()
        if isinstance(value, ast.Call):
            name = _called(value)
            words = {word.arg for word in value.keywords}
            first = _argument(value, 0, "dataset")
            if name.endswith("DataLoader") and first is not None and "collate_fn" not in words:
                return self._field(first, scope, part, depth - 1)
            if name == "TensorDataset":
                tensor = _argument(value, int(part), "") if part.isdigit() else None
                return self._made(tensor, scope, depth - 1) if tensor is not None else set()
            if name in SAME and first is not None:
                return self._field(first, scope, part, depth - 1)
            returned = self._returned(name, "")
            if returned is not None:
                return self._field(*returned, part, depth - 1)
            return self._of_class(name, part, depth)
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Call):
            returned = self._returned(_called(value.value), ast.unparse(value.slice))
            return self._field(*returned, part, depth - 1) if returned is not None else set()
        followed = [self._field(v, s, part, depth - 1) for v, s in self._values(value, scope)]
        return followed[0] if len(followed) == 1 else set()

    def _returned(self, name: str, part: str) -> tuple[ast.expr, ast.AST] | None:
        """The return value of the only function of this name, or a member of it, with
        the function.
        """
        functions = [n for n in ast.walk(self.tree) if isinstance(n, FUNCTIONS) and n.name == name]
        returns = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Return)]
        if len(functions) != 1 or len(returns) != 1:
            return None
        value = returns[0].value if not part else _member(returns[0].value, part)
        return (value, functions[0]) if value is not None else None

    def _of_class(self, name: str, part: str, depth: int) -> set[int]:
        """Lines that make the items of this data set of the user's."""
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.ClassDef) and node.name == name):
                continue
            for method in node.body:
                if isinstance(method, FUNCTIONS) and method.name == "__getitem__":
                    returns = [n for n in ast.walk(method) if isinstance(n, ast.Return)]
                    value = _member(returns[0].value, part) if len(returns) == 1 else None
                    if value is not None:
                        return self._made(value, method, depth - 1) or {value.lineno}
        return set()

    def _made(self, value: ast.AST, scope: ast.AST, depth: int) -> set[int]:
        """Lines of the calls that make this tensor."""
        if depth <= 0:
            return set()
        if isinstance(value, ast.Call):
            if _widens(value):
                return {value.func.end_lineno or value.lineno}
            if _narrows(value):
                return set()
            if isinstance(value.func, ast.Attribute) and not _of_module(value.func.value):
                return self._made(value.func.value, scope, depth - 1)  # a method of the tensor
            inner = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
            return {node.lineno for node in inner if _widens(node)}  # as in torch.stack
        if isinstance(value, ast.Subscript):
            return self._made(value.value, scope, depth - 1)
        if isinstance(value, ast.BinOp):
            sides = (value.left, value.right)
            return set().union(*(self._made(side, scope, depth - 1) for side in sides))
        followed = [self._made(v, s, depth - 1) for v, s in self._values(value, scope)]
        return followed[0] if len(followed) == 1 else set()

    def _values(self, value: ast.AST, scope: ast.AST) -> list[tuple[ast.expr, ast.AST]]:
        """The values assigned to a name or an attribute of self, each with the
        enclosing function.
        """
        if not isinstance(value, (ast.Name, ast.Attribute)):
            return []
        text = ast.unparse(value)
        if text.startswith("self."):
            return [(v, self._scope(v.lineno)) for v in _assigned(self.tree, text)]
        if not isinstance(value, ast.Name):
            return []
        found = [(v, scope) for v in _assigned(scope, text)]
        if not found and isinstance(scope, FUNCTIONS):
            found = list(self._arguments(scope, text))
            if not found:
                found = [(v, self.tree) for v in _assigned(self.tree, text, top=True)]
        return found

    def _arguments(self, function: ast.AST, name: str) -> Iterator[tuple[ast.expr, ast.AST]]:
        """The arguments that calls in this file pass for one parameter of a function."""
        assert isinstance(function, FUNCTIONS)
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in names:
            return
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _called(node) == function.name:
                method = names[:1] == ["self"]
                value = _argument(node, names.index(name) - method, name)
                if value is not None:
                    yield value, self._scope(node.lineno)


def _assigned(scope: ast.AST, text: str, top: bool = False) -> list[ast.expr]:
    """Values of the assignments to this target, with its position if it is in a tuple.

    top: of a module, outside its functions.
    """
    values = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if not (top and isinstance(node, (*FUNCTIONS, ast.ClassDef))):
            waiting += ast.iter_child_nodes(node)
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            value = _matching(target, node.value, text)  # type: ignore[attr-defined]
            if value is not None:
                values.append(value)
    return values


def _matching(target: ast.expr, value: ast.expr, text: str) -> ast.expr | None:
    """The part of an assignment's value that goes to this target, or None if nothing or unknown."""
    if ast.unparse(target) == text:
        return value
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    for at, item in enumerate(target.elts):
        if ast.unparse(item) == text:
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                return value.elts[at]
            if isinstance(value, ast.Call) and _called(value) not in SAME:
                return ast.copy_location(ast.Subscript(value, ast.Constant(at), ast.Load()), value)
            return value if isinstance(value, ast.Call) else None
    return None


def _member(value: ast.expr | None, part: str) -> ast.expr | None:
    """The field of a returned tuple or dictionary."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts[int(part)] if part.isdigit() and int(part) < len(value.elts) else None
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and part == f'"{key.value!s}"':
                return item
        return None
    return value if not part else None


def _argument(call: ast.Call, at: int, name: str) -> ast.expr | None:
    words = {word.arg: word.value for word in call.keywords}
    plain = not any(isinstance(value, ast.Starred) for value in call.args[: at + 1])
    return call.args[at] if plain and at < len(call.args) else words.get(name)


def _widens(call: ast.Call) -> bool:
    """Whether a call can make a float64 tensor from something else."""
    texts = [ast.unparse(value) for value in (*call.args, *(w.value for w in call.keywords))]
    name = _called(call)
    if name in ("double", "DoubleTensor") or (name == "to" and set(texts) & set(WIDE)):
        return True
    given = next((ast.unparse(w.value) for w in call.keywords if w.arg == "dtype"), None)
    if given is not None or _narrows(call):
        return given in WIDE
    return (
        name in CONVERTS
        and isinstance(call.func, (ast.Attribute, ast.Name))
        and (len(call.args) < 2)
    )


def _narrows(call: ast.Call) -> bool:
    """Whether its result is not float64, judging by its source."""
    texts = [ast.unparse(value) for value in (*call.args, *(w.value for w in call.keywords))]
    other = any(re.search(r"float32|float16|torch\.float\b|\bint\d*\b", text) for text in texts)
    return _called(call) in NARROWS or (other and _called(call) in ("to", *CONVERTS))


def _of_module(value: ast.expr) -> bool:
    """Whether it is torch, np, F, torch.nn.functional: a module's function, not a method."""
    return ast.unparse(value).partition(".")[0] in ("torch", "np", "numpy", "F", "nn")


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))
