"""One check over one machine: what it finds, asked for by the check's code."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Finding, Severity
from flatout.nouns.machine import Machine


def findings(code: str, machine: Machine) -> tuple[Finding, ...]:
    """All of this one check; a check that fails is a failed test."""
    file = checks.find(code)
    assert file is not None
    found = diagnose(machine, [checks.MACHINE.load(file.id)])
    assert all(item.severity is not Severity.UNCHECKED for item in found), found
    return found


def only(code: str, machine: Machine) -> Finding:
    """Its one finding."""
    (finding,) = findings(code, machine)
    return finding


def commands(finding: Finding) -> str:
    """Its commands as one text."""
    return "\n".join(finding.cure.commands)


def each(silent: dict[str, list[Any]]) -> list[Any]:
    """Each code with each of its machines, as a test's parameters."""
    return [
        pytest.param(code, machine, id=f"{code}-{number}")
        for code, machines in silent.items()
        for number, machine in enumerate(machines)
    ]
