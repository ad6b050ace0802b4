"""`flatout profile` on real scripts: slices, statistics of all data, unread derivatives."""

from __future__ import annotations

from pathlib import Path

import pytest

import profiled

SCRIPT = "growing_faults.py"
CODES = {
    "slices": "KERN024",
    "statistics": "LOOP017",
    "derivatives": "LOOP016",
}


def places(folder: Path, *args: str) -> dict[str, str]:
    """Code -> line, of the findings that are tested here."""
    document = profiled.run(SCRIPT, folder, *args)
    named = {item["code"]: item["where"] for item in document["findings"]}
    return {code: where for code, where in named.items() if code in CODES.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("--fault", "statistics"),
        ("--field", "--fault", "derivatives"),
    ],
)
def test_faults_are_named_with_their_lines(args: tuple[str, ...], tmp_path: Path) -> None:
    faults = args[-1].split(",")
    expected = {CODES[fault]: profiled.line(SCRIPT, fault) for fault in faults}
    assert places(tmp_path, *args) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_slices_that_a_loop_takes_are_named(tmp_path: Path) -> None:
    named = places(tmp_path, "--fault", "slices")
    assert list(named) == ["KERN024"]
    # x[:, at] is no call of Python's: a trace has its function, and not its line.
    line = int(named["KERN024"].removeprefix(f"{SCRIPT}:"))
    marked = int(profiled.line(SCRIPT, "slices").removeprefix(f"{SCRIPT}:"))
    assert marked - 4 < line < marked + 3


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("args", [(), ("--field",)])
def test_sound_scripts_have_none_of_them(args: tuple[str, ...], tmp_path: Path) -> None:
    assert places(tmp_path, *args) == {}
