"""Whole machines, composed from parts: exactly the expected codes come out."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from every import for_every
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Severity
from machines import composed

MACHINES = composed.machines()

each_machine = for_every(MACHINES)


@each_machine
def test_exactly_the_expected_codes(name: str) -> None:
    machine, expected = MACHINES[name]
    findings = diagnose(machine)
    told = "\n".join(f"{item.code} {item.title}: {item.evidence}" for item in findings)
    assert sorted(item.code for item in findings) == sorted(expected), told


@each_machine
def test_findings_can_be_believed_and_followed(name: str) -> None:
    for item in diagnose(MACHINES[name][0]):
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
    for machine, _ in MACHINES.values():
        if machine.system.name != "Windows":
            scripts += ["\n".join(item.cure.commands) for item in diagnose(machine)]
    assert len(scripts) > 40
    for script in scripts:
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
