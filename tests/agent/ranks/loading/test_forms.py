"""What batches are made of, and which are not what the ranks' parts make."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from flatout_agent.ranks.loading.forms import PADDED, Uncut, form_of

Point = namedtuple("Point", ("x", "y"))
COUNTS = (3, 2)


def parts_of(collate: Callable[[list[Any]], Any], rows: list[Any]) -> tuple[Any, list[Any]]:
    return collate(rows), [collate(rows[:3]), collate(rows[3:])]


ROWS = [
    {"x": torch.arange(4.0) + row, "name": f"row {row}", "at": Point(row, [float(row)])}
    for row in range(5)
]


@pytest.mark.parametrize(
    ("collate", "hows"),
    [
        (default_collate, ["rows", "items", "rows", "rows"]),
        (lambda rows: [row["x"][: 1 + len(row["name"]) % 2] for row in rows], ["items"]),
        (lambda rows: (torch.ones(len(rows), 2), 7, "fast", None), ["rows", *["same"] * 3]),
        (lambda rows: OrderedDict(x=torch.ones(len(rows), 0), w=torch.ones(9)), ["rows", "same"]),
    ],
)  # fmt: skip
def test_a_batch_is_made_of_parts(collate: Callable[[list[Any]], Any], hows: list[str]) -> None:
    whole, parts = parts_of(collate, ROWS)
    form = form_of(whole, parts, COUNTS)
    assert [leaf.how for leaf, _ in form.leaves(whole)] == hows
    assert form.signature(parts[0], 3) == form.signature(parts[1], 2)
    again = form.built(leaf for _, leaf in form.leaves(whole))
    assert type(again) is type(whole)
    assert repr(again) == repr(whole)
    assert repr(form.part(whole, 3, 2)) == repr(parts[1])


def test_a_batch_of_as_many_rows_as_fields() -> None:
    rows = [(torch.ones(2) * row, row) for row in range(2)]
    form = form_of(default_collate(rows), [default_collate([row]) for row in rows], (1, 1))
    assert [child.how for child in form.children] == ["rows", "rows"]


@pytest.mark.parametrize(
    ("collate", "why"),
    [
        (lambda rows: torch.stack([row["x"] for row in rows[::-1]]), "depends on the others"),
        (lambda rows: torch.stack([row["x"] for row in rows]).mean(0), "number of rows"),
        (lambda rows: torch.ones(len(rows), max(int(row["x"][0]) for row in rows)), PADDED),
        (lambda rows: torch.stack([row["x"] for row in rows], 1), "number of rows"),
        (lambda rows: (torch.ones(len(rows)), len(rows)), "number of rows"),
        (lambda rows: {row["name"]: row["x"] for row in rows}, "no lists of rows"),
        (lambda rows: torch.ones(len(rows), 4, 3).transpose(1, 2), "another layout"),
        (lambda rows: torch.ones(len(rows), requires_grad=True), "gradients"),
        (lambda rows: object(), "a object, which is not known"),
        (lambda rows: rows if len(rows) > 2 else tuple(rows), "another kind"),
        (lambda rows: [len(rows) for _ in rows], "depends on the others"),
    ],
)
def test_what_is_not(collate: Callable[[list[Any]], Any], why: str) -> None:
    whole, parts = parts_of(collate, ROWS)
    with pytest.raises(Uncut, match=why):
        form_of(whole, parts, COUNTS)


@pytest.mark.parametrize(
    "later",
    [
        (torch.ones(2, 5), ["a"] * 2),  # fits by itself: another rank's decides
        (torch.ones(3, 5), ["a"] * 2),
        (torch.ones(2, 5), ["a"] * 3),
        (torch.ones(2, 5), "aa"),
        [torch.ones(2, 5), ["a"] * 2],
        (torch.ones(2, 5).t().contiguous().t(), ["a"] * 2),
    ],
)
def test_a_later_part_is_looked_at(later: Any) -> None:
    whole = (torch.ones(5, 4), list("abcde"))
    form = form_of(whole, [(torch.ones(3, 4), list("abc")), (torch.ones(2, 4), list("de"))], COUNTS)
    usual = form.signature((torch.ones(2, 4), list("de")), 2)
    with contextlib.suppress(Uncut):
        assert form.signature(later, 2) != usual
