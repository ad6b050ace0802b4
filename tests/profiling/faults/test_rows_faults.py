"""`flatout profile` on a real script: rows of padding, and rows that nobody takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiled

SCRIPT = "rows_faults.py"
CODES = {"frames": "DATA011", "rows": "KERN025"}


def places(folder: Path, faults: str) -> dict[str, str]:
    """Code -> line, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", faults)
    named = {item["code"]: item["where"] for item in document["findings"]}
    return {code: where for code, where in named.items() if code in CODES.values()}


@pytest.mark.slow
def test_needless_rows_are_named_with_their_lines(tmp_path: Path) -> None:
    expected = {code: profiled.line(SCRIPT, fault) for fault, code in CODES.items()}
    assert places(tmp_path, "frames,rows") == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
