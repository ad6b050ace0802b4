"""`flatout profile` on a real script: what a line's text tells of the time that it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "line_faults.py"
WORDS = {"search": "searching a list", "growing": "growing an array", "text": "turned into text"}
CODES = {"search": "HOST009", "growing": "HOST010", "text": "HOST018"}


def named(document: dict[str, Any]) -> set[tuple[str, str, str | None]]:
    """Fault, code and line of the findings that name one of these."""
    return {
        (fault, each["code"], each["where"])
        for each in document["findings"]
        for fault, words in WORDS.items()
        if words in each["title"]
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows no columns")
@pytest.mark.parametrize(
    "fault",
    [*(pytest.param(name, marks=pytest.mark.thorough) for name in ("search", "growing")), "text"],
)
def test_the_fault_is_named_at_its_line(fault: str, tmp_path: Path) -> None:
    document = profiled.run(SCRIPT, tmp_path, "--fault", fault)
    assert named(document) == {(fault, CODES[fault], profiled.line(SCRIPT, fault))}
    assert fault != "text" or "HOST008" not in {each["code"] for each in document["findings"]}


@pytest.mark.slow
@pytest.mark.thorough
def test_its_sound_twin_has_none_of_them(tmp_path: Path) -> None:
    assert named(profiled.run(SCRIPT, tmp_path)) == set()
