"""All checks over one Machine: the Findings, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.diagnosing import checks
from flatout.diagnosing.checks import CheckModule, Diagnosis
from flatout.nouns.finding import Cure, Finding, Severity
from flatout.nouns.machine import Machine


def diagnose(machine: Machine, modules: Iterable[CheckModule] | None = None) -> tuple[Finding, ...]:
    """What is wrong with this machine; a check that fails is a finding, never an error.

    Consequences of a found problem are left out. Sorted by severity, then by code.
    """
    loaded = list(modules if modules is not None else map(checks.load, checks.names()))
    found = [finding for module in loaded for finding in _findings(module, machine)]
    present = {finding.code for finding in found if finding.severity is not Severity.UNCHECKED}
    hidden = {
        code for module in loaded if module.CHECK.code in present for code in module.CHECK.hides
    }
    order = list(Severity)
    told = [finding for finding in found if finding.code not in hidden]
    return tuple(sorted(told, key=lambda item: (order.index(item.severity), item.code, item.title)))


def problems(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those findings that something should be done about: errors and warnings."""
    return tuple(item for item in findings if item.severity in (Severity.ERROR, Severity.WARNING))


def _findings(module: CheckModule, machine: Machine) -> list[Finding]:
    try:
        return [_finding(module, diagnosis) for diagnosis in module.check(machine)]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        crashed = Diagnosis(
            title=f"could not be checked: {_id(module)}",
            evidence=reason,
            cure=Cure("This is a fault of flatout; the other checks are not touched by it."),
            severity=Severity.UNCHECKED,
        )
        return [_finding(module, crashed)]


def _finding(module: CheckModule, diagnosis: Diagnosis) -> Finding:
    return Finding(
        code=module.CHECK.code,
        id=_id(module),
        severity=diagnosis.severity or module.CHECK.severity,
        title=diagnosis.title,
        evidence=diagnosis.evidence,
        cure=diagnosis.cure,
    )


def _id(module: CheckModule) -> str:
    return module.__name__.rpartition(".")[2].replace("_", "-")
