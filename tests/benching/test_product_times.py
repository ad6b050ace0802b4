"""Products timed in an interpreter, as the host sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.benching import product_times
from flatout.nouns.product import ProductCalls

ADDMM = ProductCalls(
    name="aten::addmm",
    shapes=((8,), (4, 16), (16, 8), (), ()),
    dtypes=("float", "float", "float", "Scalar", "Scalar"),
    values=("", "", "", "1", "1"),
    calls=1.0,
    ms=2.0,
)
SMALL = ProductCalls("aten::mm", ((2, 2), (2, 2)), ("float", "float"), ("", ""), 1.0, 0.001)
UNKNOWN = ProductCalls("aten::unheard_of", ((2, 2),), ("float",), ("",), 1.0, 1.0)


@pytest.mark.slow
def test_the_costly_ones_are_timed_and_the_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_times, "BUDGET_S", 0.1)
    monkeypatch.setattr(product_times, "LIMIT_S", 240.0)
    timed = product_times.measured((ADDMM, SMALL, UNKNOWN), sys.executable, threads=1)
    assert [product.name for product in timed] == [ADDMM.name, SMALL.name, UNKNOWN.name]
    assert set(timed[0].seconds) == {"now", "bfloat16"}
    assert timed[1:] == (SMALL, UNKNOWN), "nothing was measured of these"


@pytest.mark.parametrize(
    "code", ["exit 3", "echo nonsense", "echo 'flatout-answer {\"seconds\": 1}'"]
)
def test_an_interpreter_that_cannot_do_it_changes_nothing(tmp_path: Path, code: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{code}\n")
    python.chmod(0o755)
    assert product_times.measured((ADDMM,), str(python), threads=1) == (ADDMM,)


def test_an_interpreter_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    assert product_times.measured((ADDMM,), str(tmp_path / "python"), threads=1) == (ADDMM,)


def test_without_products_nothing_is_started() -> None:
    assert product_times.measured((), "/no/interpreter", threads=1) == ()
