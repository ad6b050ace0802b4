"""All checks on one Machine, Profile or Benched: the Findings, worst first."""

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
OF_TIME = ("HOST", "KERN", "SYNC")
"""Families whose findings say how a line spends its time."""
MOSTLY = 0.6
"""Share of a finding's saving that one naming its cause must save to replace it."""


def diagnose(
    machine: Machine, modules: Iterable[MachineCheck] | None = None
) -> tuple[Finding, ...]:
    """What is wrong with this machine. A check that fails is a finding, never an error.

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
    """What is far slower than it should be, and why. machine: as it was under load.

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
    """What slows this training job down, largest predicted gain first.

    A check that fails is a finding, never an error. Consequences of a found problem are left out.
    """
    loaded = list(modules if modules is not None else checks.JOB.every())
    found = [
        pair
        for module in loaded
        for pair in _diagnosed(module, partial(module.check, profile), profile)
    ]
    order = list(Severity)
    roots = _without_consequences(_without_parts(found), loaded)
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


def _without_parts(found: Sequence[tuple[Finding, Diagnosis]]) -> list[Finding]:
    """The findings whose time no other finding explains with its cause."""
    covering = [pair for pair in found if pair[1].covers]
    return [pair[0] for pair in found if not any(_is_part(pair, whole) for whole in covering)]


def _is_part(pair: tuple[Finding, Diagnosis], whole: tuple[Finding, Diagnosis]) -> bool:
    """Whether the first's time is part of the second's, whose lines contain it."""
    finding, covering = pair[0], whole[0]
    lines = set(pair[1].covers) - {finding.where}
    is_within = bool(lines) and lines <= set(whole[1].covers)
    if finding.code == covering.code or not (finding.where in whole[1].covers or is_within):
        return False
    if finding.gain is None or covering.gain is None or not finding.code.startswith(OF_TIME):
        return False
    if pair[1].needless or whole[1].needless:
        return not pair[1].needless
    return covering.gain.saved >= MOSTLY * finding.gain.saved


def problems(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings that call for action: errors and warnings."""
    return tuple(
        finding for finding in findings if finding.severity in (Severity.ERROR, Severity.WARNING)
    )


def _findings(module: AnyCheck, check: Callable[[], Iterator[Diagnosis]]) -> list[Finding]:
    return [finding for finding, _ in _diagnosed(module, check, None)]


def _diagnosed(
    module: AnyCheck, check: Callable[[], Iterator[Diagnosis]], profile: Profile | None
) -> list[tuple[Finding, Diagnosis]]:
    try:
        return [(_finding(module, diagnosis, profile), diagnosis) for diagnosis in check()]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        crashed = Diagnosis(
            title=f"could not be checked: {checks.name_of(module.__name__)}",
            evidence=reason,
            cure=Cure("This is a fault of flatout; the other checks are not touched by it."),
            severity=Severity.UNCHECKED,
        )
        return [(_finding(module, crashed, None), crashed)]


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
