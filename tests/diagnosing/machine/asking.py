"""One check over one machine: what it finds, asked for by the check's name."""

from __future__ import annotations

from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Finding, Severity
from flatout.nouns.machine import Machine


def findings(check_id: str, machine: Machine) -> tuple[Finding, ...]:
    """All of this one check; a check that fails is a failed test."""
    found = diagnose(machine, [checks.MACHINE.load(check_id)])
    assert all(item.severity is not Severity.UNCHECKED for item in found), found
    return found


def only(check_id: str, machine: Machine) -> Finding:
    """Its one finding."""
    (finding,) = findings(check_id, machine)
    return finding


def commands(finding: Finding) -> str:
    """Its commands as one text."""
    return "\n".join(finding.cure.commands)
