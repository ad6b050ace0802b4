"""Tests whether something is in a list: where the loop around them is seen to start over."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest

from flatout.profiling.kinds_of_values import SourceFiles
from flatout.profiling.membership import MembershipTest, searches
from flatout_agent import wire

REJECTING = """
import random
from collections import defaultdict
import numpy as np

class Sampler:
    def __init__(self, pairs):
        self.bought = {kind}
        for user, item in pairs:
            {fill}
        self.random = random.Random(0)

    def owned(self, user):
        return self.bought[user]

    def draw(self, user):
        owned = self.owned(user)
        picked = []
        while len(picked) < 4:
            item = int(self.random.random() * 6000)
            if item not in owned:
                picked.append(item)
        return picked
"""
LISTS = REJECTING.format(kind="defaultdict(list)", fill="self.bought[user].append(item)")
SETS = REJECTING.format(kind="defaultdict(set)", fill="self.bought[user].add(item)")
DICTS = REJECTING.format(kind="{}", fill="self.bought.setdefault(user, {})[item] = 1")
UNKNOWN = REJECTING.format(kind="load(pairs)", fill="pass")


@dataclass
class Stack:
    own: wire.FrameSeen
    ms: float
    samples: int
    callees: tuple[wire.FrameSeen, ...] = ()

    @property
    def frames(self) -> tuple[wire.FrameSeen, ...]:
        return (self.own, *self.callees)


def seen_at(text: str, expression: str, ms: float, *callees: wire.FrameSeen) -> Stack:
    """Where the first such expression of the text is; a whole line where it ends in a colon."""
    lines = text.splitlines()
    line = next(number for number, words in enumerate(lines, 1) if expression in words)
    begins = lines[line - 1].index(expression)
    ends = begins + len(expression)
    if expression.endswith(":"):
        begins, ends = 0, 1000
    frame = wire.FrameSeen("train.py", line, "draw", "", begins, line, ends)
    return Stack(frame, ms, round(10 * ms), callees)


def searched(text: str, *stacks: Stack) -> list[MembershipTest]:
    files = SourceFiles(lambda _: ast.parse(text), lambda _: {"np": "numpy", "random": "random"})
    return list(searches(stacks, files).values())


def rejecting(text: str, loop_ms: float = 20.0, call_ms: float = 0.4) -> list[MembershipTest]:
    return searched(
        text,
        seen_at(text, "len(picked) < 4", loop_ms),
        seen_at(text, "int(self.random.random() * 6000)", call_ms),
    )


def test_the_loops_condition_is_seen_for_the_test_within_it() -> None:
    (test,) = rejecting(LISTS)
    assert test.text == "item not in owned"
    assert LISTS.splitlines()[test.line - 1].strip() == "if item not in owned:"


def test_of_unknown_containers_only_where_numbers_are_searched_and_all_else_is_short() -> None:
    assert len(rejecting(UNKNOWN)) == 1
    assert rejecting(UNKNOWN, call_ms=4.0) == []
    words = UNKNOWN.replace("int(self.random.random() * 6000)", "pick(self.random.random() * 6000)")
    assert searched(words, seen_at(words, "len(picked) < 4", 20.0)) == []


@pytest.mark.parametrize("text", [SETS, DICTS])
def test_sets_and_dictionaries_are_not_searched(text: str) -> None:
    assert rejecting(text) == []


def test_a_short_list_takes_no_longer_than_the_rest_of_the_loop() -> None:
    assert rejecting(LISTS, loop_ms=1.0, call_ms=0.8) == []


def test_what_else_may_take_the_time_is_not_the_test() -> None:
    text = LISTS.replace("picked.append(item)", "total = total + weights; picked.append(item)")
    assert rejecting(text) == []


def test_a_call_by_itself_is_seen_by_itself() -> None:
    stack = seen_at(LISTS, "int(self.random.random() * 6000)", 20.0)
    assert searched(LISTS, stack) == []


@pytest.mark.parametrize(
    ("items", "number"),
    [
        ("list(rows)", 1),
        ("[int(row) for row in rows]", 1),
        ("np.unique(rows)", 1),
        ("rows.tolist()", 1),
        ("sorted(rows)", 1),
        ("set(rows)", 0),
        ("dict.fromkeys(rows)", 0),
        ("range(9000)", 0),
        ("'a long text'", 0),
        ("{row for row in rows}", 0),
        ("rows", 0),
    ],
)
def test_by_what_the_items_are(items: str, number: int) -> None:
    text = f"import numpy as np\n\n\ndef kept(words, rows):\n    known = {items}\n"
    text += "    for word in words:\n        if word in known:\n            yield_(word)\n"
    tests = searched(text, seen_at(text, "if word in known:", 10.0))
    assert len(tests) == number


def test_a_comprehension_is_a_loop() -> None:
    text = "def kept(ids):\n    seen = list(ids)\n    return [i for i in ids if i not in seen]:"
    text = text.removesuffix(":") + "  # kept:\n"
    (test,) = searched(text, seen_at(text, "# kept:", 10.0))
    assert test.text == "i not in seen"


def test_a_few_items_that_are_written_out_are_no_search() -> None:
    text = "for word in words:\n    if word in ['a', 'b']:\n        keep(word)\n"
    assert searched(text, seen_at(text, "if word in ['a', 'b']:", 10.0)) == []


LOOP = "    return [i for i in range(n) if i in {items}]  # loop:\n"
MISLEADING = {
    "short tuple": "ITEMS = (1, 5, 9)\ndef kept(n):\n" + LOOP.format(items="ITEMS"),
    "short list": "ITEMS = [1, 5]\ndef kept(n):\n" + LOOP.format(items="ITEMS"),
    "default": "def kept(n, items=None):\n    if items is None:\n        items = []\n"
    + LOOP.format(items="items"),
    "global": "items = []\ndef load():\n    global items\n    items = set(rows)\n"
    "def kept(n):\n" + LOOP.format(items="items"),
    "around": "items = list(rows)\ndef make():\n    items = set(rows)\n"
    "    def kept(n):\n    " + LOOP.format(items="items"),
    "another class": "class Raw:\n    def __init__(self):\n        self.items = []\n"
    "class User:\n    items: set = field(default_factory=set)\n"
    "def kept(user, n):\n" + LOOP.format(items="user.items"),
    "converted": "items = {u: [] for u in users}\nfor u in users:\n    items[u] = set(items[u])\n"
    "def kept(u, n):\n" + LOOP.format(items="items[u]"),
    "replaced": "class Users:\n    def __init__(self):\n        self.items = defaultdict(list)\n"
    "        self.items = {u: set(v) for u, v in self.items.items()}\n"
    "    def kept(self, u, n):\n    " + LOOP.format(items="self.items[u]"),
    "keys": "items = {u: [] for u in users}\ndef kept(n):\n    for name in items:\n    "
    + LOOP.format(items="name"),
    "of a package": "import rows\ndef load():\n    return []\ndef kept(n):\n"
    "    items = rows.load()\n" + LOOP.format(items="items"),
}


@pytest.mark.parametrize("text", MISLEADING.values(), ids=MISLEADING)
def test_what_may_be_no_list_is_none(text: str) -> None:
    stacks = [seen_at(text, "# loop:", 10.0)]
    files = SourceFiles(lambda _: ast.parse(text), lambda _: {"rows": "rows"})
    assert searches(stacks, files) == {}
    twin = text.rpartition("in ")[0] + "in list(rows)]  # loop:\n"
    files = SourceFiles(lambda _: ast.parse(twin), lambda _: {})
    assert len(searches([seen_at(twin, "# loop:", 10.0)], files)) == 1
