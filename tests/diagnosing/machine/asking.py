"""One check over one machine: what it finds, asked for by the check's code."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Told:
    """What a check says of a machine: one finding, with these words somewhere in it."""

    name: str
    code: str
    machine: Machine
    words: tuple[str, ...]
    severity: Severity | None
    never: tuple[str, ...]

    def holds(self) -> None:
        """Whether it says so."""
        finding = only(self.code, self.machine)
        said = "\n".join(
            (finding.title, finding.evidence, finding.cure.text, *finding.cure.commands)
        )
        assert [word for word in self.words if word not in said] == [], said
        assert [word for word in self.never if word in said] == [], said
        assert self.severity in (None, finding.severity)


def told(
    name: str,
    code: str,
    machine: Machine,
    *words: str,
    severity: Severity | None = None,
    never: tuple[str, ...] = (),
) -> Told:
    """A row of a table of what is told."""
    return Told(name, code, machine, words, severity, never)


def each_of(cases: list[Told]) -> pytest.MarkDecorator:
    """A test's parameter `case`: each row of a table, by its name."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])
