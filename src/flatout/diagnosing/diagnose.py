"""All checks on one Machine, Profile or Benched: the Findings, worst first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from flatout.diagnosing import checks
from flatout.diagnosing.checks import CheckModule, Diagnosis
from flatout.diagnosing.job import loading, savings
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.ceiling import Benched
from flatout.nouns.finding import Cure, Finding, Gain, Severity
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

LEAST_LEFT = 0.05
"""The least share of a step that remains, whatever a cure saves."""
MEASURED, MODELLED = 0.10, 0.40
"""The share by which a measured and a modelled saving may be off."""
LEAST_SPREAD = 0.02
"""The least spread of any prediction, as a share of the step."""
UNCERTAINTY = {
    "COMM": MODELLED,
    "COPY": MEASURED,
    "DATA": MEASURED,
    "HOST": MODELLED,
    "HOST003": MEASURED,
    "HOST007": MEASURED,
    "KERN": MODELLED,
    "LOOP": MEASURED,
    "MEM": MODELLED,
    "SYNC": MEASURED,
}
"""By check, else by family, for checks that do not say themselves."""
OF_HOST = ("DATA", "HOST", "SYNC")
"""Families that save host time; the device's own work remains."""
BETWEEN_STEPS = ("DATA004",)
"""Checks of these families whose saving is outside the steps."""
OF_DEVICE = ("COMM", "COPY", "KERN", "MEM")
"""Families that save device time; the host's own work remains."""
HOST_UNRECORDED = 0.75
"""The least share of the host's recorded time that remains when nothing is recorded."""
BINDS = 1.01
"""A bound is mentioned if it makes the step this many times as long."""


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
    # A finding goes whose time another one explains with its cause.
    covering = [pair for pair in found if pair[1].covers]
    wholes = [pair[0] for pair in found if not any(_is_part(pair, whole) for whole in covering)]
    roots = _without_consequences(wholes, loaded)
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
        gain=gain(module.CHECK.code, diagnosis, profile) if profile is not None else None,
    )


def gain(code: str, diagnosis: Diagnosis, profile: Profile) -> Gain | None:
    """What this diagnosis of the check `code` is predicted to gain, or None if unknown."""
    step, saves = profile.anatomy.step_ms, diagnosis.saves_ms
    if saves is None or not step:
        return None
    family = re.sub(r"\d+", "", code)
    least, most, name = (0.0, 0.0, "")
    if code not in BETWEEN_STEPS:
        least, most, name = _bound(family, profile, diagnosis.adds_host_ms)
    uncertainty = diagnosis.uncertainty
    if uncertainty is None:
        uncertainty = UNCERTAINTY.get(code, UNCERTAINTY.get(family, MODELLED))
    spread = max(saves * uncertainty, LEAST_SPREAD * step)
    largest = saves + spread
    if diagnosis.most_ms is not None:
        largest = max(saves, min(largest, diagnosis.most_ms))
    left = max(step - saves, LEAST_LEFT * step)
    reason = diagnosis.reason
    if least > BINDS * left:
        reason += f"; {units.milliseconds(least)} remain: {name}"
    return Gain(
        ratio=_ratio(step, saves, least),
        reason=reason,
        low=_ratio(step, saves - spread, most),
        high=_ratio(step, largest, least),
    )


def _ratio(step_ms: float, saves_ms: float, remains_ms: float) -> float:
    """Step now / step afterwards, of which at least `remains_ms` is left; never below 1."""
    possible_ms = max(0.0, min(saves_ms, step_ms - remains_ms))
    return amdahl.speedup(step_ms, possible_ms, least=LEAST_LEFT)


def _bound(family: str, profile: Profile, adds_host_ms: float) -> tuple[float, float, str]:
    """(least, most ms of a step that remain whatever is saved; what they are)."""
    anatomy = profile.anatomy
    if savings.accelerated(profile):
        if family in OF_HOST:
            busy = anatomy.busy_ms + anatomy.part(Kind.UNRECORDED)
            return busy, busy, "the device's own work"
        if family in OF_DEVICE and anatomy.host_ms is not None:
            host_ms = anatomy.host_ms + adds_host_ms
            return HOST_UNRECORDED * host_ms, host_ms, "the host's own work"
        return 0.0, 0.0, ""
    facts, work = loading.loader(profile), loading.prepared_ms(profile)
    if family == "DATA" or facts is None or facts.num_workers < 1 or work is None:
        return 0.0, 0.0, ""
    delivered = min(work / facts.num_workers, anatomy.step_ms)
    return delivered, delivered, "the loader's workers"
