"""Reading small files: what cannot be read is None, and nothing else is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing import reading


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert reading.text(tmp_path / "absent") is None
    assert reading.text(tmp_path) is None  # a folder
    assert reading.text(Path("a\0b")) is None
    assert reading.number(tmp_path / "absent") is None
    assert reading.entries(tmp_path / "absent") is None
    assert reading.entries(tmp_path) == []
    assert reading.link_name(tmp_path) is None
    assert reading.exists(tmp_path / "absent") is False
    assert reading.exists(tmp_path) is True


def test_a_file_that_refuses_is_none() -> None:
    refusing = Path("/proc/self/mem")  # its first page cannot be read by anybody
    if not refusing.exists():
        pytest.skip("only Linux has such a file")
    assert reading.text(refusing) is None


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own")
def test_a_loop_of_links_is_unknown(tmp_path: Path) -> None:
    os.symlink(tmp_path / "a", tmp_path / "b")
    os.symlink(tmp_path / "b", tmp_path / "a")
    assert reading.exists(tmp_path / "a") is None
    assert reading.link_name(tmp_path / "a") == "b"


@given(st.text(max_size=30))
def test_numbers_are_decimal_digits_alone(written: str) -> None:
    found = reading.whole(written)
    assert found is None or (written.isascii() and found == int(written))


@pytest.mark.parametrize(
    ("written", "number"),
    [("12", 12), ("-1", -1), ("", None), ("1 2", None), ("٣", None), ("0x1", None), (None, None)],
)
def test_numbers(written: str | None, number: int | None) -> None:
    assert reading.whole(written) == number
