"""`flatout profile` on a real script: faults of host time, each with its cause and exact line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "host_faults.py"
CODES = {
    "metrics": "HOST010",
    "clip": "HOST011",
    "mask": "HOST009",
    "elements": "HOST011",
    "constant": "LOOP017",
    "unread": "LOOP016",
    "jpeg": "DATA010",
    "sleep": "HOST012",
    "process": "HOST012",
    "thread": "HOST013",
}
FAMILIES = ("HOST", "DATA", "LOOP")
TRUE_AS_WELL = ("HOST005", "HOST014", "HOST015", "DATA001")
"""What is said of the cores, where these tests share them, and of a loader without workers."""
OF_THE_SCRIPT = {*CODES.values(), "LOOP016", "LOOP017"}


def findings(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Codes and lines of the host's families, the largest gain first."""
    told = [(each["code"], each["where"]) for each in document["findings"]]
    return [
        (code, where)
        for code, where in told
        if code.startswith(FAMILIES) and code not in TRUE_AS_WELL
    ]


def expected(*faults: str) -> set[tuple[str, str]]:
    return {(CODES[fault], profiled.line(SCRIPT, fault)) for fault in faults}


def part(document: dict[str, Any], name: str) -> float:
    """Share of the step."""
    return sum(each["share"] for each in document["anatomy"] if each["part"] == name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "steps"),
    [
        (("metrics", "clip", "mask"), "30"),  # a short program: it is run again
        (("jpeg", "sleep", "process"), "600"),
        pytest.param(("thread",), "600", marks=pytest.mark.thorough),
        pytest.param(("elements",), "600", marks=pytest.mark.thorough),
        pytest.param(("constant",), "600", marks=pytest.mark.thorough),
    ],
)
def test_the_largest_findings_name_cause_and_line(
    faults: tuple[str, ...], steps: str, tmp_path: Path
) -> None:
    document = profiled.run(SCRIPT, tmp_path, "--fault", ",".join(faults), "--steps", steps)
    largest = findings(document)
    assert set(largest[: len(faults)]) == expected(*faults)
    assert "HOST008" not in dict(largest)


@pytest.mark.slow
def test_a_closure_is_no_update(tmp_path: Path) -> None:
    document = profiled.run(SCRIPT, tmp_path, "--fault", "closure,elements,constant,unread")
    largest = findings(document)
    assert set(largest[:3]) == expected("elements", "constant", "unread")
    assert "HOST008" not in dict(largest)
    assert 0 < part(document, "optimizer") < part(document, "matmul")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sound_script_has_none_of_them(tmp_path: Path) -> None:
    codes = dict(findings(profiled.run(SCRIPT, tmp_path)))
    assert not set(codes) & OF_THE_SCRIPT
