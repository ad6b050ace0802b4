"""A dataset's `__getitem__`, carried out for all indices of a batch at once.

Many programs hold their data in arrays and write a dataset that looks up a row of each and converts
it. `read` interprets the source of such a method with whole columns instead of one row: an index
becomes one index operation for the batch, and a window `data[i : i + n]` one for all windows. None
of the program's own code runs. `Unreadable` is raised for operations not known to give the same for
a batch as for its rows, and for a source that does not compile to the code that runs.
"""

from __future__ import annotations

import argparse
import ast
import linecache
import operator
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flatout_agent.speedups.samples.rows import (
    RowValues,
    Unreadable,
    array_of,
    by_method,
    collated,
    gathered,
    is_plain,
    listed_windows,
    meets_each,
    number,
    numpy,
    part,
    tensor_of,
)

SMALL = 2**31
"""Products of whole numbers below this are the same in NumPy as in Python."""
OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
"""Correctly rounded, one number at a time: the same for rows as for a batch."""
WHOLE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
"""Operations that are exact for whole numbers, too."""


def read(dataset: Any, indices: Sequence[Any]) -> Any:
    """The default collate function's result for these samples. Raises Unreadable, IndexError."""
    np = numpy()
    kind = type(dataset)
    function = _of_class(kind, "__getitem__")
    if type(function) is not types.FunctionType:
        raise Unreadable(f"the samples come from {kind.__name__}, whose source is not Python")
    if "__getattribute__" in {name for level in kind.__mro__[:-1] for name in vars(level)}:
        raise Unreadable(f"{kind.__name__} computes its attributes")
    if "__getitems__" in vars(dataset) or _of_class(kind, "__getitems__") is not None:
        raise Unreadable("the dataset loads whole batches by itself")
    method = _methods.get(function)
    if method is None:
        method = _methods[function] = _parsed(function)
    if isinstance(method, str):
        raise Unreadable(method)
    kinds = set(map(type, indices))
    if kinds != {int} and kinds != {np.int64}:
        raise Unreadable("the sampler gives something other than numbers")
    index = RowValues(np.array(indices, dtype=np.int64), python=int in kinds)
    arguments = (argument.arg for argument in method.args.args)
    names = dict(zip(arguments, (dataset, index), strict=True))
    return collated(_Reading(dataset, names, function.__globals__).run(method.body), set())


def _of_class(kind: type, name: str) -> Any:
    """The attribute of the class or a base class, found without calling anything, or None."""
    return next((vars(level)[name] for level in kind.__mro__ if name in vars(level)), None)


_methods: weakref.WeakKeyDictionary[Any, ast.FunctionDef | str] = weakref.WeakKeyDictionary()
"""The parsed source of each `__getitem__`, or why it cannot be interpreted."""


def _parsed(function: Any) -> ast.FunctionDef | str:
    name, code = function.__qualname__, function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        file = ast.parse(source)
        compiled = compile(file, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return f"the source of {name} is not available"
    method = next(
        (
            node
            for node in ast.walk(file)
            if isinstance(node, ast.FunctionDef) and node.lineno == code.co_firstlineno
        ),
        None,
    )
    if method is None or code not in _code_objects(compiled):
        return f"the source of {name} differs from what runs"
    arguments = method.args
    more = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults
    if len(arguments.args) != 2 or code.co_argcount != 2 or more:
        return f"{name} takes more than an index"
    if code.co_freevars:
        return f"{name} uses names from around it"
    return method


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _code_objects(const)


class _Reading:
    """One call, with its variables and the values of its expressions."""

    def __init__(self, dataset: Any, names: dict[str, Any], program: dict[str, Any]) -> None:
        self.dataset, self.names, self.program = dataset, names, program
        self.expressions: dict[type[ast.AST], Callable[[Any], Any]] = {
            ast.Constant: lambda node: node.value,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.BinOp: self._arithmetic,
            ast.UnaryOp: self._signed,
            ast.Call: self._call,
            ast.Tuple: lambda node: tuple(map(self.value, node.elts)),
            ast.List: lambda node: list(map(self.value, node.elts)),
            ast.Dict: self._dict,
        }

    def run(self, body: list[ast.stmt]) -> Any:
        """The value of the first `return`; raises Unreadable if there is none."""
        for statement in body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.value(statement.value)
            if isinstance(statement, ast.If):
                branch = statement.body if self._holds(statement.test) else statement.orelse
                if any(isinstance(node, ast.Return) for node in branch):
                    return self.run(branch)
                self._carry_out(branch)
            else:
                self._carry_out([statement])
        raise Unreadable("no `return` is reached")

    def _carry_out(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                raise _more(statement)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = self.value(statement.value)
            for target in targets:
                self._assign(target, value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and type(value) is tuple:
            if len(target.elts) != len(value):
                raise _more(target)
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        else:
            raise _more(target)

    def _holds(self, test: ast.expr) -> bool:
        """A condition that is the same for all indices."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return not self._holds(test.operand)
        if isinstance(test, ast.BoolOp):
            both = all if isinstance(test.op, ast.And) else any
            return both(self._holds(part) for part in test.values)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compared(test)
        if isinstance(test, ast.Call) and ast.unparse(test) in self._asks_for_a_tensor():
            return False  # indices are numbers here
        value = self.value(test)
        if value is None or type(value) in (bool, int, float, str):
            return bool(value)
        raise _more(test)

    def _asks_for_a_tensor(self) -> tuple[str, str]:
        import torch

        if self.program.get("torch") is not torch or "torch" in self.names:
            raise Unreadable("it asks for the type of its index")
        name = next(n for n, value in self.names.items() if isinstance(value, RowValues))
        return f"torch.is_tensor({name})", f"isinstance({name}, torch.Tensor)"

    def _compared(self, test: ast.Compare) -> bool:
        left, right = self.value(test.left), self.value(test.comparators[0])
        compare = test.ops[0]
        if isinstance(left, RowValues) or isinstance(right, RowValues):
            raise _more(test)
        if isinstance(compare, ast.Is) and right is None:
            return left is None
        if isinstance(compare, ast.IsNot) and right is None:
            return left is not None
        if {type(left), type(right)} <= {bool, int, float, str}:
            if isinstance(compare, ast.Eq):
                return bool(left == right)
            if isinstance(compare, ast.NotEq):
                return bool(left != right)
        raise _more(test)

    # Expressions -------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        """Rows, or a value that is the same for all indices."""
        kind = self.expressions.get(type(node))
        if kind is None:
            raise _more(node)
        return kind(node)

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            return self.names[node.id]
        if node.id in self.program:
            return self.program[node.id]
        raise _more(node)

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        keys = [getattr(key, "value", None) for key in node.keys]
        if not all(type(key) is str for key in keys):
            raise _more(node)
        return dict(zip(map(str, keys), map(self.value, node.values), strict=True))

    def _attribute(self, node: ast.Attribute) -> Any:
        np = numpy()
        import torch

        owner = self.value(node.value)
        if owner is torch or owner is np:
            found = getattr(owner, node.attr, None)
            if isinstance(found, (torch.dtype, type)):
                return found
            raise _more(node)
        kinds = (argparse.Namespace, types.SimpleNamespace)
        if owner is not self.dataset and type(owner) not in kinds:
            raise _more(node)
        of_class = _of_class(type(owner), node.attr)
        if node.attr in vars(owner) and of_class is None:
            return vars(owner)[node.attr]
        if node.attr not in vars(owner) and type(of_class) in (bool, int, float, str):
            return of_class
        raise _more(node)

    def _subscript(self, node: ast.Subscript) -> Any:
        base = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self._window(base, node.slice)
        if isinstance(node.slice, ast.Tuple) and isinstance(base, RowValues):
            return part(base, [self._place(one) for one in node.slice.elts])
        if isinstance(node.slice, ast.Tuple):
            first, *others = node.slice.elts
            return part(gathered(base, self.value(first)), [self._place(one) for one in others])
        index = self.value(node.slice)
        if isinstance(index, RowValues):
            return gathered(base, index)
        if isinstance(base, RowValues):
            return part(base, [index])
        constant = type(base) in (dict, list, tuple) or is_plain(base)
        if constant and type(index) in (int, str):
            return base[index]
        raise _more(node)

    def _place(self, node: ast.expr) -> Any:
        """An index or a slice that is the same for all rows."""
        if not isinstance(node, ast.Slice):
            return self.value(node)
        ends = [None if end is None else self.value(end) for end in (node.lower, node.upper)]
        if node.step is not None or not all(end is None or type(end) is int for end in ends):
            raise _more(node)
        return slice(*ends)

    def _window(self, base: Any, node: ast.Slice) -> RowValues:
        """`base[i : i + n]`, of one length for all indices."""
        np = numpy()
        if isinstance(base, RowValues):
            return part(base, [self._place(node)])
        if node.lower is None or node.upper is None or node.step is not None:
            raise _more(node)
        lower, upper = self.value(node.lower), self.value(node.upper)
        if not (isinstance(lower, RowValues) and isinstance(upper, RowValues)):
            raise _more(node)
        if not (lower.is_whole and upper.is_whole) or lower.is_tensor or upper.is_tensor:
            raise _more(node)
        lengths = upper.data - lower.data
        length = int(lengths[0])
        if length < 1 or not (lengths == length).all():
            raise Unreadable("its windows differ in length")
        if int(lower.data.min()) < 0 or int(upper.data.max()) > len(base):
            raise Unreadable("a window reaches beyond the data")
        if type(base) in (list, tuple):
            return listed_windows([base[start : start + length] for start in lower.data.tolist()])
        places = (lower.data[:, None] + np.arange(length)).reshape(-1)
        found = gathered(base, RowValues(places))
        shape = (len(lengths), length, *found.data.shape[1:])
        return RowValues(found.data.reshape(shape))

    def _signed(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub) and type(value) in (int, float):
            return -value
        raise _more(node)

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        sides = [side for side in (left, right) if isinstance(side, RowValues)]
        if not sides:
            return _same_for_all(node, left, right)
        if any(side.python for side in sides):
            return _of_python(node, left, right)
        operation = OPERATIONS.get(type(node.op))
        rank = max(side.rank for side in sides)
        if type(node.op) in WHOLE and isinstance(left, RowValues) and left.is_whole:
            operation = WHOLE[type(node.op)] if type(right) is int and right > 0 else None
        if operation is None:
            raise _more(node)
        for side in (left, right):
            if isinstance(side, RowValues):
                fits = side.rank == rank
            else:
                fits = type(side) in (int, float) or meets_each(side, sides[0], rank)
            if not fits:
                raise _more(node)
        values = [side.data if isinstance(side, RowValues) else side for side in (left, right)]
        if len({hasattr(value, "requires_grad") for value in values if hasattr(value, "ndim")}) > 1:
            raise _more(node)
        return RowValues(operation(*values))

    def _call(self, node: ast.Call) -> Any:
        np = numpy()
        import torch

        options = {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        if len(options) != len(node.keywords):
            raise _more(node)
        arguments = [self.value(argument) for argument in node.args]
        called, made = node.func, None
        if isinstance(called, ast.Name) and called.id not in (*self.names, *self.program):
            if called.id in ("int", "float") and len(arguments) == 1 and not options:
                made = number(arguments[0], called.id)
        elif isinstance(called, ast.Attribute):
            owner = self.value(called.value)
            if owner is torch:
                made = tensor_of(called.attr, arguments, options)
            elif owner is np:
                made = array_of(called.attr, arguments, options)
            elif isinstance(owner, RowValues):
                made = by_method(owner, called.attr, arguments, options)
        if made is None:
            raise _more(node)
        return made


def _more(node: ast.AST) -> Unreadable:
    text = " ".join(ast.unparse(node).split())
    return Unreadable(f"__getitem__ does more than look up rows: `{text[:60]}`")


def _same_for_all(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Arithmetic on numbers and arrays that the dataset holds."""
    operation = OPERATIONS.get(type(node.op)) or WHOLE.get(type(node.op))
    sides = (left, right)
    if operation is None or not all(type(side) in (int, float) or is_plain(side) for side in sides):
        raise _more(node)
    if type(node.op) in WHOLE and not all(type(side) is int for side in sides):
        raise _more(node)
    return operation(left, right)


def _of_python(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Arithmetic on Python's numbers, above all the index."""
    np = numpy()
    operation = OPERATIONS.get(type(node.op)) or WHOLE.get(type(node.op))
    values = []
    for side in (left, right):
        if isinstance(side, RowValues):
            if not side.python or isinstance(side.data, list):
                raise _more(node)
            values.append(side.data)
        elif type(side) in (int, float):
            values.append(side)
        else:
            raise _more(node)
    if operation is None or any(np.abs(value).max(initial=0) >= SMALL for value in values):
        raise _more(node)
    if isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)) and not np.all(values[1]):
        raise _more(node)
    floats = any(np.asarray(value).dtype.kind == "f" for value in values)
    if floats and type(node.op) in WHOLE:
        raise _more(node)
    result = operation(*values)
    return RowValues(result, python=True) if isinstance(result, np.ndarray) else result
