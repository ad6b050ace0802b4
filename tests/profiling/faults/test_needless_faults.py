"""`flatout profile` on a real script: work that the step does not need, with its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "needless_faults.py"
CODES = {
    "frozen": "LOOP018",
    "checkpoint": "MEM009",
    "padding": "DATA011",
    "singles": "DATA012",
}


def places(folder: Path, *faults: str) -> dict[str, list[Any]]:
    """Code -> lines, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", ",".join(faults))
    lines: dict[str, list[Any]] = {}
    for item in document["findings"]:
        lines.setdefault(item["code"], []).append(item["where"])
    return {code: lines[code] for code in CODES.values() if code in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ("frozen", "checkpoint", "padding"),
        pytest.param(("singles",), marks=pytest.mark.thorough),
    ],
)
def test_faults_are_named_with_their_lines(faults: tuple[str, ...], tmp_path: Path) -> None:
    expected = {CODES[fault]: [profiled.line(SCRIPT, fault)] for fault in faults}
    assert places(tmp_path, *faults) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
