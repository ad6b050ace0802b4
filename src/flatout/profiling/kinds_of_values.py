"""The kinds of values that a file's names hold, as far as its text shows: lists, sets, numbers."""

from __future__ import annotations

import ast
import enum
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
DEEPEST = 8
"""Most names, calls and attributes followed for one answer."""
SHORT = 8
"""Most items written out in a literal whose membership test takes no time."""
LISTS = frozenset({"list", "sorted", "tuple", "deque", "List", "Tuple", "Sequence", "Deque"})
HASHED = frozenset(
    {"set", "frozenset", "dict", "Counter", "OrderedDict", "range", "Set", "FrozenSet", "Dict"}
    | {"Mapping", "MutableMapping", "AbstractSet", "keys", "DefaultDict"}
)
NUMBERS = frozenset(
    {"int", "len", "float", "round", "ord", "randrange", "randint", "item", "index", "count"}
    | {"integers", "getrandbits", "bit_length"}
)
TEXTS = frozenset({"str", "repr", "format", "join", "lower", "upper", "strip", "decode", "encode"})
SAME = frozenset({"copy", "deepcopy", "reversed"})
ARRAYS = frozenset({"numpy", "cupy"})
MAKE_ARRAYS = frozenset(
    {"array", "asarray", "arange", "zeros", "ones", "empty", "unique", "concatenate", "where"}
    | {"sort", "argsort", "permutation", "load", "full", "nonzero", "flatnonzero"}
)


Syntax = Callable[[str], ast.Module | None]
"""From a file, as reports name it, to its syntax tree, or None if unknown."""


@dataclass(frozen=True)
class SourceFiles:
    """The program's files, by the names that reports use."""

    tree: Syntax
    aliases: Callable[[str], Mapping[str, str]]
    """From a file to the names that it imports: np -> numpy."""


class ValueKind(enum.Enum):
    """How a value finds its items."""

    LIST = "list"
    """A list, a tuple, a deque or an array: items are compared one by one."""
    HASHED = "hashed"
    """A set, a dictionary or a range: items are found at once."""
    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True)
class ValueShape:
    """A kind, and the shape of its items (in a dictionary, of its values)."""

    kind: ValueKind
    item: ValueShape | None = None


LIST, HASH = ValueShape(ValueKind.LIST), ValueShape(ValueKind.HASHED)
NUMBER, TEXT = ValueShape(ValueKind.NUMBER), ValueShape(ValueKind.TEXT)


class FileValues:
    """The values in one file. A name assigned in several places is known if they agree."""

    def __init__(self, tree: ast.Module, packages: Mapping[str, str]) -> None:
        """packages: the file's imported names: np -> numpy."""
        self._tree = tree
        self._packages = packages
        self._nodes = list(ast.walk(tree))
        self._functions = [tree, *(node for node in self._nodes if isinstance(node, FUNCTIONS))]
        self._answers: dict[ast.expr, ValueShape | None] = {}
        self._attributes: dict[str, list[tuple[ast.AST, ast.expr, Function]]] = defaultdict(list)
        """The nodes that bind attributes of this name, with the enclosing function."""
        self._declaring: dict[str, list[Function]] = defaultdict(list)
        """Functions that declare this name global or nonlocal."""
        self._stores: list[tuple[str, ast.expr, Function]] = []
        """Values stored under a key, with the container's last name and the enclosing function."""
        for function in self._functions:
            for node in _own_nodes(function):
                self._index(node, function)

    def _index(self, node: ast.AST, function: Function) -> None:
        for part in _targets(node):
            if isinstance(part, ast.Attribute):
                self._attributes[part.attr].append((node, part, function))
            elif isinstance(part, ast.Subscript) and isinstance(node, ast.Assign):
                self._stores.append((last_name(part.value), node.value, function))
        if isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                self._declaring[name].append(function)
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                for part in _targets(child):
                    if isinstance(part, ast.Name):
                        self._attributes[part.id].append((child, part, function))
        elif isinstance(node, ast.Call) and len(node.args) == 2:
            method = node.func
            if isinstance(method, ast.Attribute) and method.attr == "setdefault":
                self._stores.append((last_name(method.value), node.args[1], function))

    def of(self, value: ast.expr, scope: Function, left: int = DEEPEST) -> ValueShape | None:
        """The shape of an expression in this function, or None if unknown."""
        if left <= 0:
            return None
        if value not in self._answers:
            self._answers[value] = None  # in case it depends on itself
            self._answers[value] = self._answer(value, scope, left - 1)
        return self._answers[value]

    def _answer(self, value: ast.expr, scope: Function, left: int) -> ValueShape | None:
        if isinstance(value, ast.Call):
            return self._of_call(value, scope, left)
        if isinstance(value, ast.Name):
            return self._with_stored(value.id, self._of_name(value.id, scope, left), left)
        if isinstance(value, ast.Attribute):
            bindings = self._attributes.get(value.attr, ())
            shape = self._agreed(self._bound(*binding, left) for binding in bindings)
            return self._with_stored(value.attr, shape, left)
        if isinstance(value, ast.Subscript):
            base = self.of(value.value, scope, left)
            if base is None or isinstance(value.slice, ast.Slice):
                return base
            return base.item or self._agreed(self._stored(last_name(value.value), left))
        return self._of_literal(value, scope, left)

    def _of_literal(self, value: ast.expr, scope: Function, left: int) -> ValueShape | None:
        if isinstance(value, ast.Tuple) and len(value.elts) <= SHORT:
            return HASH
        if isinstance(value, ast.List) and 0 < len(value.elts) <= SHORT:
            return None  # perhaps no more items are added
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            items = {self.of(item, scope, left) for item in value.elts[:8]}
            item = items.pop() if len(items) == 1 else None
            kind = ValueKind.HASHED if isinstance(value, ast.Set) else ValueKind.LIST
            return ValueShape(kind, item)
        if isinstance(value, ast.ListComp):
            return ValueShape(ValueKind.LIST, self.of(value.elt, scope, left))
        if isinstance(value, ast.DictComp):
            return ValueShape(ValueKind.HASHED, self.of(value.value, scope, left))
        if isinstance(value, ast.Dict | ast.SetComp):
            return HASH
        if isinstance(value, ast.Constant):
            if isinstance(value.value, str | bytes):
                return TEXT
            return NUMBER if isinstance(value.value, int | float) else None
        if isinstance(value, ast.JoinedStr):
            return TEXT
        if isinstance(value, ast.BinOp):
            sides = self.of(value.left, scope, left), self.of(value.right, scope, left)
            known = [side for side in sides if side is not None]
            return next((side for side in known if side.kind is not ValueKind.NUMBER), None) or (
                NUMBER if len(known) == len(sides) else None
            )
        if isinstance(value, ast.IfExp):
            return self._agreed(self.of(arm, scope, left) for arm in (value.body, value.orelse))
        return None

    def _of_call(self, call: ast.Call, scope: Function, left: int) -> ValueShape | None:
        name, argument = last_name(call.func), next(iter(call.args), None)
        if name == "tolist":
            return LIST
        if name in ("split", "splitlines"):
            return ValueShape(ValueKind.LIST, TEXT)
        if name in MAKE_ARRAYS and self._packages.get(root(call.func)) in ARRAYS:
            return LIST
        if name == "defaultdict":
            return ValueShape(ValueKind.HASHED, self._made_by(argument, scope, left))
        if name == "dict" and argument is not None:
            inner = self.of(argument, scope, left)
            return inner if inner is not None and inner.kind is ValueKind.HASHED else None
        if name in LISTS and (name == "deque" or isinstance(call.func, ast.Name)):
            inner = self.of(argument, scope, left) if argument is not None else None
            return ValueShape(ValueKind.LIST, inner.item if inner is not None else None)
        if name == "range":
            return ValueShape(ValueKind.HASHED, NUMBER)
        fixed = ((HASHED, HASH), (NUMBERS, NUMBER), (TEXTS, TEXT))
        shape = next((shape for names, shape in fixed if name in names), None)
        if shape is not None:
            return shape
        if name in SAME:
            base = call.func.value if isinstance(call.func, ast.Attribute) else argument
            copied = argument if argument is not None else base
            return self.of(copied, scope, left) if copied is not None else None
        if name in ("get", "setdefault", "pop") and isinstance(call.func, ast.Attribute):
            base_shape = self.of(call.func.value, scope, left)
            stored = base_shape.item if base_shape is not None else None
            return stored or self._agreed(self._stored(last_name(call.func.value), left))
        return self._returned(name, left) if root(call.func) not in self._packages else None

    def _made_by(self, maker: ast.expr | None, scope: Function, left: int) -> ValueShape | None:
        """The value of a dictionary's factory: list, or lambda: []."""
        if isinstance(maker, ast.Lambda):
            return self.of(maker.body, scope, left)
        name = last_name(maker) if maker is not None else ""
        return LIST if name in LISTS else HASH if name in HASHED else None

    def _returned(self, name: str, left: int) -> ValueShape | None:
        """The value returned by the only function of this name in the file."""
        functions = [
            node for node in self._nodes if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        if len(functions) != 1:
            return None
        function = functions[0]
        returned = [node for node in _own_nodes(function) if isinstance(node, ast.Return)]
        return self._agreed(
            self.of(node.value, function, left) for node in returned if node.value is not None
        )

    def _of_name(self, name: str, scope: Function, left: int) -> ValueShape | None:
        """By its parameter and all bindings in the innermost enclosing function that binds it."""
        declaring = self._declaring.get(name, [])
        for owner in self._around(scope):
            own = [] if owner in declaring else self._bindings(name, owner, left)
            if own:
                others = (self._bindings(name, function, left) for function in declaring)
                return self._agreed(itertools.chain(own, *others))
        return None

    def _around(self, scope: Function) -> list[Function]:
        """A function and those that enclose it, the innermost first, the module last."""
        around = [
            function
            for function in self._functions
            if not isinstance(function, ast.Module)
            and not isinstance(scope, ast.Module)
            and function.lineno <= scope.lineno
            and (scope.end_lineno or 0) <= (function.end_lineno or 0)
        ]
        around.sort(key=lambda function: (function is scope, function.lineno), reverse=True)
        return [*around, self._tree]

    def _bindings(self, name: str, function: Function, left: int) -> list[ValueShape | None]:
        """The values that a function and its callers assign to a name."""
        shapes = [
            self._bound(node, part, function, left)
            for node in _own_nodes(function)
            for part in _targets(node)
            if isinstance(part, ast.Name) and part.id == name
        ]
        arguments = getattr(function, "args", None)
        nodes = ast.walk(arguments) if isinstance(arguments, ast.arguments) else ()
        given = (node for node in nodes if isinstance(node, ast.arg) and node.arg == name)
        return [*shapes, *(_annotated(parameter.annotation) for parameter in given)]

    def _bound(
        self, node: ast.AST, target: ast.expr, scope: Function, left: int
    ) -> ValueShape | None:
        """The value that this statement assigns to the target."""
        if isinstance(node, ast.AnnAssign):
            shape = _annotated(node.annotation)
            return shape or (self.of(node.value, scope, left) if node.value is not None else None)
        if isinstance(node, ast.Assign | ast.NamedExpr):
            whole = node.targets if isinstance(node, ast.Assign) else [node.target]
            if target in whole:
                return self.of(node.value, scope, left)
            return None
        if isinstance(node, ast.For | ast.comprehension):
            return self._item_of(node.iter, node.target, target, scope, left)
        return None

    def _item_of(
        self, items: ast.expr, targets: ast.expr, target: ast.expr, scope: Function, left: int
    ) -> ValueShape | None:
        """The value that a loop over `items` assigns to one of its targets."""
        if isinstance(items, ast.Call) and last_name(items.func) == "enumerate" and items.args:
            pair = targets.elts if isinstance(targets, ast.Tuple) else []
            if len(pair) == 2 and pair[0] is target:
                return NUMBER
            items, targets = items.args[0], pair[1] if len(pair) == 2 else targets
        shape = self.of(items, scope, left) if targets is target else None
        counts = isinstance(items, ast.Call) and last_name(items.func) == "range"
        keys = shape is None or (shape.kind is ValueKind.HASHED and not counts)
        return None if shape is None or keys else shape.item

    def _with_stored(self, name: str, shape: ValueShape | None, left: int) -> ValueShape | None:
        """The shape, without its items' kind if others are stored under keys of such a name."""
        if shape is None or shape.item is None:
            return shape
        item = self._agreed((shape.item, *self._stored(name, left)))
        return ValueShape(shape.kind, item)

    def _stored(self, name: str, left: int) -> list[ValueShape | None]:
        """The values that the file stores anywhere under a key of such a name."""
        return [
            self.of(value, scope, left)
            for container, value, scope in self._stores
            if name and container == name
        ]

    @staticmethod
    def _agreed(shapes: Iterable[ValueShape | None]) -> ValueShape | None:
        """The shape that all have, or None if one is unknown or they differ."""
        known = list(shapes)
        kinds = {shape.kind if shape is not None else None for shape in known}
        if len(kinds) != 1 or None in kinds:
            return None
        kind = next(iter(kinds))
        items = [shape.item for shape in known if shape is not None and shape.item is not None]
        assert kind is not None
        return ValueShape(kind, FileValues._agreed(items) if items else None)


def _annotated(annotation: ast.expr | None) -> ValueShape | None:
    """By the annotation: list[int], set, dict[str, list[int]]."""
    if isinstance(annotation, ast.Subscript):
        shape = _annotated(annotation.value)
        inner = annotation.slice
        last = inner.elts[-1] if isinstance(inner, ast.Tuple) and inner.elts else inner
        return ValueShape(shape.kind, _annotated(last)) if shape is not None else None
    name = last_name(annotation) if annotation is not None else ""
    if name in ("int", "float"):
        return NUMBER
    if name in ("str", "bytes"):
        return TEXT
    return LIST if name in LISTS or name == "ndarray" else HASH if name in HASHED else None


def _targets(node: ast.AST) -> list[ast.expr]:
    """The targets that a node binds to something other than None, in tuples too."""
    value = getattr(node, "value", None)
    if isinstance(value, ast.Constant) and value.value is None:
        return []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.For | ast.comprehension):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    else:
        return []
    return [
        part
        for target in targets
        for part in (target, *(target.elts if isinstance(target, ast.Tuple | ast.List) else ()))
    ]


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """All nodes of a function except those of nested functions."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def last_name(node: ast.expr) -> str:
    """`c` of a.b.c; empty if it has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def root(node: ast.expr) -> str:
    """`a` of a.b.c; empty if it has no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
