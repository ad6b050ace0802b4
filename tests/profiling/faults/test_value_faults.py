"""`flatout profile` on a real script: faults that only the values of its tensors show."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiled

SCRIPT = "value_faults.py"
CODES = {"embedding": "KERN022", "ignored": "KERN023"}


def places(folder: Path, *faults: str) -> dict[str, str]:
    """Code -> line, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", ",".join(faults))
    named = {item["code"]: item["where"] for item in document["findings"]}
    return {code: where for code, where in named.items() if code in CODES.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [("ignored",), pytest.param(("embedding",), marks=pytest.mark.thorough)],
)
def test_value_faults_are_named_with_their_lines(faults: tuple[str, ...], tmp_path: Path) -> None:
    expected = {CODES[fault]: profiled.line(SCRIPT, fault) for fault in faults}
    assert places(tmp_path, *faults) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_no_value_faults(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
