"""`flatout profile` on a real script: derivatives and calls without need, with their lines."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "derivative_faults.py"
CODES = {"LOOP018": ("discarded",), "LOOP024": ("again", "twice")}


def places(folder: Path, *faults: str) -> dict[str, list[Any]]:
    """Code -> lines, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", ",".join(faults))
    lines: dict[str, list[Any]] = {}
    for item in document["findings"]:
        lines.setdefault(item["code"], []).append(item["where"])
    return {code: sorted(lines[code]) for code in CODES if code in lines}


@pytest.mark.slow
def test_faults_are_named_with_their_lines(tmp_path: Path) -> None:
    expected = {
        code: sorted(profiled.line(SCRIPT, fault) for fault in faults)
        for code, faults in CODES.items()
    }
    assert places(tmp_path, *itertools.chain(*CODES.values())) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
