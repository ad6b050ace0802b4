"""`flatout profile` on a real script: sorts, inverses, diagonal matrices, lists and float64."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiled

SCRIPT = "matrix_faults.py"
CODES = {
    "sort": "KERN026",
    "inverse": "KERN027",
    "diagonal": "KERN028",
    "list": "KERN029",
}


def places(folder: Path, *faults: str) -> dict[str, str]:
    """Code -> line, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, "--fault", ",".join(faults))
    named = {item["code"]: item["where"] for item in document["findings"]}
    return {code: where for code, where in named.items() if code in (*CODES.values(), "KERN001")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [("sort", "inverse"), pytest.param(("diagonal", "list"), marks=pytest.mark.thorough)],
)
def test_faults_are_named_with_their_lines(faults: tuple[str, ...], tmp_path: Path) -> None:
    expected = {CODES[fault]: profiled.line(SCRIPT, fault) for fault in faults}
    assert places(tmp_path, *faults) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_float64_is_told_where_the_data_or_the_model_becomes_it(tmp_path: Path) -> None:
    where = places(tmp_path, "float64")["KERN001"]
    assert where in (profiled.line(SCRIPT, "float64"), profiled.line(SCRIPT, "data"))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    assert places(tmp_path, "") == {}
