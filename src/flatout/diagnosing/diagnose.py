"""All checks over one Machine, one Profile or one Benched: the Findings, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from flatout.diagnosing import checks, gains
from flatout.diagnosing.checks import CheckModule, Diagnosis
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Finding, Severity
from flatout.nouns.machine import Machine
from flatout.nouns.profile import Profile

MachineCheck = CheckModule[[Machine]]
JobCheck = CheckModule[[Profile]]
CeilingCheck = CheckModule[[Benched, Machine]]
AnyCheck = CheckModule[...]


def diagnose(
    machine: Machine, modules: Iterable[MachineCheck] | None = None
) -> tuple[Finding, ...]:
    """What is wrong with this machine; a check that fails is a finding, never an error.

    Consequences of a found problem are left out. Sorted by severity, then by code.
    """
    loaded = list(modules if modules is not None else checks.MACHINE.every())
    findings = [
        finding
        for module in loaded
        for finding in _findings(module, partial(module.check, machine))
    ]
    return _worst_first(findings, loaded)


def diagnose_benched(
    benched: Benched, machine: Machine, modules: Iterable[CeilingCheck] | None = None
) -> tuple[Finding, ...]:
    """What gives far less than it should, and why; `machine` as it was under load.

    A check that fails is a finding, never an error. Sorted by severity, then by code.
    """
    loaded = list(modules if modules is not None else checks.CEILINGS.every())
    findings = [
        finding
        for module in loaded
        for finding in _findings(module, partial(module.check, benched, machine))
    ]
    return _worst_first(findings, loaded)


def diagnose_profile(
    profile: Profile, modules: Iterable[JobCheck] | None = None
) -> tuple[Finding, ...]:
    """What holds this training job back; the largest predicted gain first.

    A check that fails is a finding, never an error; consequences of a found problem are left out.
    """
    loaded = list(modules if modules is not None else checks.JOB.every())
    findings = [
        finding
        for module in loaded
        for finding in _findings(module, partial(module.check, profile), profile)
    ]
    order = list(Severity)
    roots = _without_consequences(findings, loaded)
    return tuple(
        sorted(
            (finding for finding in roots if finding.boost not in profile.boosts),
            key=lambda finding: (
                -(finding.gain.ratio if finding.gain else 0.0),
                order.index(finding.severity),
                finding.code,
            ),
        )
    )


def _worst_first(findings: Sequence[Finding], modules: Sequence[AnyCheck]) -> tuple[Finding, ...]:
    order = list(Severity)
    roots = _without_consequences(findings, modules)
    return tuple(
        sorted(
            roots, key=lambda finding: (order.index(finding.severity), finding.code, finding.title)
        )
    )


def _without_consequences(
    findings: Sequence[Finding], modules: Sequence[AnyCheck]
) -> list[Finding]:
    present = {finding.code for finding in findings if finding.severity is not Severity.UNCHECKED}
    hidden = {
        code for module in modules if module.CHECK.code in present for code in module.CHECK.hides
    }
    return [finding for finding in findings if finding.code not in hidden]


def problems(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those findings that something should be done about: errors and warnings."""
    return tuple(
        finding for finding in findings if finding.severity in (Severity.ERROR, Severity.WARNING)
    )


def _findings(
    module: AnyCheck, check: Callable[[], Iterator[Diagnosis]], profile: Profile | None = None
) -> list[Finding]:
    try:
        return [_finding(module, diagnosis, profile) for diagnosis in check()]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        crashed = Diagnosis(
            title=f"could not be checked: {checks.name_of(module.__name__)}",
            evidence=reason,
            cure=Cure("This is a fault of flatout; the other checks are not touched by it."),
            severity=Severity.UNCHECKED,
        )
        return [_finding(module, crashed, None)]


def _finding(module: AnyCheck, diagnosis: Diagnosis, profile: Profile | None) -> Finding:
    return Finding(
        code=module.CHECK.code,
        id=checks.name_of(module.__name__),
        severity=diagnosis.severity or module.CHECK.severity,
        title=diagnosis.title,
        evidence=diagnosis.evidence,
        cure=diagnosis.cure,
        where=diagnosis.where,
        boost=diagnosis.boost,
        gain=gains.gain(module.CHECK.code, diagnosis, profile) if profile is not None else None,
    )
