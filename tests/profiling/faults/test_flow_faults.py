"""`flatout profile` on a real script: faults that only its data flow shows, with their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "flow_faults.py"
CODES = {
    "unread": "LOOP016",
    "mask": "LOOP017",
    "float64": "KERN001",
    "anomaly": "LOOP001",
    "kept": "MEM005",
    "channels": "HOST011",
    "often": "LOOP007",
}


def places(folder: Path, *faults: str) -> dict[str, list[Any]]:
    """Code -> lines, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", ",".join(faults))
    lines: dict[str, list[Any]] = {}
    for item in document["findings"]:
        lines.setdefault(item["code"], []).append(item["where"])
    return {code: lines[code] for code in (*CODES.values(), "LOOP012") if code in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        ("unread", "mask", "float64"),
        ("anomaly", "kept"),
        pytest.param(("channels", "often"), marks=pytest.mark.thorough),
    ],
)
def test_faults_are_named_with_their_lines(faults: tuple[str, ...], tmp_path: Path) -> None:
    expected = {CODES[fault]: [profiled.line(SCRIPT, fault)] for fault in faults}
    assert places(tmp_path, *faults) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
