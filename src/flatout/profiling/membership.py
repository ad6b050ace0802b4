"""Membership tests in lists, found by where sampled stacks see the loop around them.

Python hands the interpreter over after calls and where loops start over, not after `x in items`.
The test's time is therefore seen at the next such place: the loop's condition or last line.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flatout.profiling.kinds_of_values import (
    FUNCTIONS,
    SHORT,
    FileValues,
    Function,
    SourceFiles,
    ValueKind,
    last_name,
)
from flatout_agent import wire

Loop = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
UNSEEN = frozenset({"len", "isinstance", "type", "append", "add"})
"""Calls after which the interpreter is not handed over; they take no time."""
KNOWN, GUESSED = 3.0, 8.0
"""A test explains a time of at least this many times the rest of the loop: if the source shows a
list, and if it shows only that no text is searched."""


@dataclass(frozen=True)
class MembershipTest:
    """`x in items` in a loop."""

    line: int
    text: str
    first: int
    """First line of its loop."""
    last: int
    known: bool
    """Whether the source shows that it is a list or an array."""
    measured: bool
    """Whether something else in each round of the loop is seen separately."""

    def explains(self, seen_ms: float, samples: int, else_ms: float, else_samples: int) -> bool:
        """Whether it explains the time that is seen where its loop starts over.

        else_ms, else_samples: for everything else that the loop does.
        """
        if not self.measured:
            return self.known and else_ms < seen_ms
        times = KNOWN if self.known else GUESSED
        return seen_ms >= times * else_ms and samples >= times * max(else_samples, 1)


class MembershipTests:
    """The membership tests of one file."""

    def __init__(self, tree: ast.Module, packages: Mapping[str, str]) -> None:
        """packages: the file's imported names: np -> numpy."""
        self._values = FileValues(tree, packages)
        self._loops = list(_loops(tree, tree))

    def at(self, frame: wire.FrameSeen) -> MembershipTest | None:
        """The test whose time this sampled position may show.

        None if there is none, or if another expression may take the time.
        """
        around = [pair for pair in self._loops if _first(pair[0]) <= frame.line <= _last(pair[0])]
        if frame.column is None or not around:
            return None
        loop, function = min(around, key=lambda pair: _last(pair[0]) - _first(pair[0]))
        nodes = list(_own_nodes(loop))
        tests = [node for node in nodes if isinstance(node, ast.Compare) and _is_test(node)]
        if len(tests) != 1 or not _starts_over(loop, tests[0], frame):
            return None
        within = {id(part) for node in nodes if _is_seen(node) for part in ast.walk(node)}
        if any(_may_take_long(node) for node in nodes if id(node) not in within):
            return None
        return self._test(tests[0], loop, function)

    def _test(self, test: ast.Compare, loop: Loop, function: Function) -> MembershipTest | None:
        items = self._values.of(test.comparators[0], function)
        wanted = self._values.of(test.left, function)
        if items is not None and items.kind is not ValueKind.LIST:
            return None
        if items is None and (wanted is None or wanted.kind is not ValueKind.NUMBER):
            return None  # it may be a text that is searched
        return MembershipTest(
            test.lineno,
            ast.unparse(test),
            _first(loop),
            _last(loop),
            known=items is not None,
            measured=any(_is_seen(node) for node in _of_each_round(loop)),
        )


class SampledStack(Protocol):
    """A stack, and for how long it was seen."""

    @property
    def frames(self) -> tuple[wire.FrameSeen, ...]: ...
    @property
    def own(self) -> wire.FrameSeen: ...
    @property
    def callees(self) -> tuple[wire.FrameSeen, ...]: ...
    @property
    def ms(self) -> float: ...
    @property
    def samples(self) -> int: ...


def searches(
    stacks: Sequence[SampledStack], files: SourceFiles
) -> dict[wire.FrameSeen, MembershipTest]:
    """Positions in the user's code whose time belongs to a membership test in a list."""
    positions: dict[wire.FrameSeen, list[SampledStack]] = defaultdict(list)
    for stack in stacks:
        if not stack.callees:
            positions[stack.own].append(stack)
    by_file: dict[str, MembershipTests | None] = {}
    by_test: dict[tuple[str, MembershipTest], list[wire.FrameSeen]] = defaultdict(list)
    for frame in positions:
        if frame.file not in by_file:
            tree = files.tree(frame.file)
            by_file[frame.file] = (
                MembershipTests(tree, files.aliases(frame.file)) if tree is not None else None
            )
        tests = by_file[frame.file]
        test = tests.at(frame) if tests is not None else None
        if test is not None:
            by_test[frame.file, test].append(frame)
    return {
        frame: test
        for (file, test), frames in by_test.items()
        if _explains(test, file, [stack for at in frames for stack in positions[at]], stacks)
        for frame in frames
    }


def _explains(
    test: MembershipTest,
    file: str,
    seen: Sequence[SampledStack],
    stacks: Iterable[SampledStack],
) -> bool:
    """Whether a test explains the `seen` time, given everything that its loop does."""
    through = [
        stack
        for stack in stacks
        if any(
            frame.file == file and not frame.package and test.first <= frame.line <= test.last
            for frame in stack.frames
        )
    ]
    seen_ms, seen_samples = sum(stack.ms for stack in seen), sum(stack.samples for stack in seen)
    else_ms = sum(stack.ms for stack in through) - seen_ms
    else_samples = sum(stack.samples for stack in through) - seen_samples
    return test.explains(seen_ms, seen_samples, else_ms, else_samples)


def _loops(node: ast.AST, function: Function) -> Iterator[tuple[Loop, Function]]:
    """All loops below a node, with the function that contains each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Loop):
            yield child, function
        yield from _loops(child, child if isinstance(child, FUNCTIONS) else function)


def _own_nodes(loop: Loop) -> Iterator[ast.AST]:
    """The nodes of a loop, without nested loops and functions."""
    waiting = list(_round(loop))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Loop | FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def _round(loop: Loop) -> list[ast.AST]:
    if isinstance(loop, ast.For):
        return [*loop.body]
    if isinstance(loop, ast.While):
        return [loop.test, *loop.body]
    results = [loop.key, loop.value] if isinstance(loop, ast.DictComp) else [loop.elt]
    return [*results, *(test for generator in loop.generators for test in generator.ifs)]


def _of_each_round(loop: Loop) -> Iterator[ast.AST]:
    """The nodes that run in each round, whatever the conditions."""
    if isinstance(loop, COMPREHENSIONS):
        tests = [test for generator in loop.generators for test in generator.ifs]
        parts: list[ast.AST] = [*tests[:1]] if tests else _round(loop)
    else:
        parts = [loop.test] if isinstance(loop, ast.While) else []
        parts += [
            part.test if isinstance(part, ast.If) else part
            for part in loop.body
            if isinstance(part, ast.If | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr)
        ]
    for part in parts:
        plain = not any(isinstance(node, ast.BoolOp | ast.IfExp) for node in ast.walk(part))
        yield from ast.walk(part) if plain else ()


def _is_seen(node: ast.AST) -> bool:
    """Whether the interpreter is handed over after it."""
    return isinstance(node, ast.Call) and last_name(node.func) not in UNSEEN


def _is_test(node: ast.Compare) -> bool:
    """Whether it is `x in items`, with items that are not written out."""
    if not isinstance(node.ops[0], ast.In | ast.NotIn):
        return False
    items = node.comparators[0]
    if isinstance(items, ast.List | ast.Tuple):
        return len(items.elts) > SHORT
    return not isinstance(items, ast.Constant | ast.Set | ast.Dict)


def _may_take_long(node: ast.AST) -> bool:
    """Whether it may take the time without being seen: arithmetic on arrays, copies, texts."""
    if isinstance(node, ast.BinOp):
        return not (_is_whole_number(node.left) or _is_whole_number(node.right))
    if isinstance(node, ast.AugAssign):
        return not _is_whole_number(node.value)
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not) and not isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.JoinedStr | ast.Slice | ast.Delete | ast.Starred | Loop)


def _is_whole_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _starts_over(loop: Loop, test: ast.Compare, frame: wire.FrameSeen) -> bool:
    """Whether a position is the test's, or where its loop starts over: a whole line of the loop or
    its condition.
    """
    begins, ends = frame.column or 0, frame.end_column or 0
    if frame.line == test.lineno and (begins, ends) == (test.col_offset, test.end_col_offset):
        return True
    if begins == 0 and ends > (_columns(loop) or 0):
        return frame.line >= test.lineno or frame.line == _first(loop)
    condition = loop.test if isinstance(loop, ast.While) else None
    if condition is None or not condition.lineno <= frame.line <= _last(condition):
        return False
    inside = (node for node in ast.walk(condition) if isinstance(node, ast.Compare))
    return any(
        (node.lineno, node.col_offset, node.end_col_offset) == (frame.line, begins, ends)
        for node in inside
    )


def _columns(loop: Loop) -> int | None:
    """The end column of its longest line; a position that ends after it means a whole line."""
    ends = (getattr(node, "end_col_offset", None) or 0 for node in ast.walk(loop))
    return max(ends, default=None)


def _first(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _last(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", None) or _first(node))
