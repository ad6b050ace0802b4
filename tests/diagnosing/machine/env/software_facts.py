"""One check over one machine: what it finds, asked for by the check's name."""

from __future__ import annotations

from typing import Any

from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose
from flatout.nouns.finding import Finding, Severity
from machines.broken_software import MACHINES
from machines.healthy import changed


def findings(check_id: str, machine: Any) -> tuple[Finding, ...]:
    """All of this one check; a check that fails is a failed test."""
    found = diagnose(machine, [checks.MACHINE.load(check_id)])
    assert all(item.severity is not Severity.UNCHECKED for item in found), found
    return found


def only(check_id: str, machine: Any) -> Finding:
    """Its one finding."""
    (finding,) = findings(check_id, machine)
    return finding


def broken(name: str, **changes: Any) -> Any:
    """A broken machine by its name, with other facts."""
    return changed(MACHINES[name][0], **changes)


def commands(finding: Finding) -> str:
    """Its commands as one text."""
    return "\n".join(finding.cure.commands)
