"""Diagnosed: everything `flatout doctor` found: the Machine, its Findings and the self-tests."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flatout.nouns.finding import Finding, Severity
from flatout.nouns.machine import Machine
from flatout.nouns.selftest import SelfTest


class Health(enum.StrEnum):
    """The verdict over all findings."""

    HEALTHY = "healthy"
    IMPAIRED = "impaired"
    """It works, but slower or less safely than it could."""
    BROKEN = "broken"
    """Something does not work."""


@dataclass(frozen=True)
class Diagnosed:
    """What one run of the doctor found."""

    machine: Machine
    findings: tuple[Finding, ...]
    """The worst first."""
    selftests: tuple[SelfTest, ...] = ()
    """Empty without --deep."""
    checks: int = 0
    """Number of checks that ran."""
    wall_s: float | None = None

    @property
    def health(self) -> Health:
        """Broken on an error or a failed test, impaired on a warning; notes change nothing."""
        severities = {finding.severity for finding in self.findings}
        failed = any(test.passed is False for test in self.selftests)
        if Severity.ERROR in severities or failed:
            return Health.BROKEN
        return Health.IMPAIRED if Severity.WARNING in severities else Health.HEALTHY
