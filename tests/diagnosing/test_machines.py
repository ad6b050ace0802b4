"""Whole machines, composed from parts: exactly the expected codes come out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from every import for_every
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Finding, Severity
from flatout.probing import recorded
from machines import compose

FOLDER = Path(__file__).parents[1] / "machines"
FILES = sorted(FOLDER.glob("*.json"))


def found(path: Path) -> tuple[Finding, ...]:
    return diagnose(recorded.read(path))


def test_enough_machines() -> None:
    assert len(FILES) >= 40


def test_the_files_are_as_composed() -> None:
    wanted = {name: compose.text(*machine) for name, machine in compose.machines().items()}
    there = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
    stale = {name for name in {*wanted, *there} if wanted.get(name) != there.get(name)}
    assert stale == set(), "run python tests/machines/compose.py"


@for_every(FILES, lambda path: path.stem)
def test_exactly_the_expected_codes(path: Path) -> None:
    expected = json.loads(path.read_text(encoding="utf-8"))["expected"]
    findings = found(path)
    told = "\n".join(f"{item.code} {item.title}: {item.evidence}" for item in findings)
    assert sorted(item.code for item in findings) == expected, told


@for_every(FILES, lambda path: path.stem)
def test_findings_can_be_believed_and_followed(path: Path) -> None:
    for item in found(path):
        assert item.severity is not Severity.UNCHECKED
        assert 10 <= len(item.title) <= 100, item.title
        assert "\n" not in item.title + item.evidence
        assert len(item.evidence) >= 10
        assert item.cure.text.endswith("."), item.cure.text
        assert "None" not in f"{item.title} {item.evidence} {item.cure.text}", item
        assert all(line.strip() and "None" not in line for line in item.cure.commands), item
        if item.severity is Severity.ERROR:
            assert item.cure.commands, item


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_commands_are_lines_that_a_shell_can_read() -> None:
    scripts = []
    for path in FILES:
        if recorded.read(path).system.name != "Windows":
            scripts += ["\n".join(item.cure.commands) for item in found(path)]
    assert len(scripts) > 40
    for script in scripts:
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
