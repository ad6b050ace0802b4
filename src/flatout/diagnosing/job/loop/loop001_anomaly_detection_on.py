"""Anomaly detection is on: a tool for finding NaNs that costs time in every step.

## What it sees

`torch.autograd.set_detect_anomaly(True)` (or the context `detect_anomaly`) while the job trains.

## Why it matters

Each operator of the forward pass records its Python stack, and the backward pass looks for NaN in
every gradient; on an accelerator it waits for each answer. Steps take up to several times as long.

## Cure

Turn it off. To find a NaN, put `with torch.autograd.detect_anomaly():` around the step where it
appears.

## References

- https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP001", severity=Severity.WARNING, since="0.2.0", hides=("KERN007",))
LOOKING = r"aten::(isnan|is_nonzero|any|ne(\.\w+)?|item|_local_scalar_dense)"
STACK_MS = 0.05
"""Cautious cost of recording one Python stack."""
ANSWER = r"aten::(is_nonzero|item|_local_scalar_dense)"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the job."""
    seen = profile.seen
    if seen is None or not seen.anomaly:
        return
    looking = [
        operator
        for operator in operators.called(profile, LOOKING)
        if operator.backward or operator.where is None
    ]
    took = operators.total(profile, looking)
    stacks = (
        sum(operator.calls for operator in operators.called(profile, r"aten::isnan")) * STACK_MS
    )
    waited = sum(
        gap.ms
        for gap in profile.gaps
        if gap.kind is Kind.WAIT_SYNC and operators.matches(ANSWER, gap.doing)
    )
    saving = device_time.of_step(
        profile,
        took + stacks + waited,
        f"looking for NaN takes {units.milliseconds(took)}, recording stacks about "
        f"{units.milliseconds(stacks)} ({STACK_MS} ms each, a cautious constant), waiting for the "
        f"answers {units.milliseconds(waited)}",
    )
    yield Diagnosis(
        title="anomaly detection is on",
        evidence="torch.is_anomaly_enabled() is True"
        + (f"; {operators.evidence(profile, looking)}" if looking else ""),
        cure=Cure(
            "Turn it off; it is for finding NaNs.",
            _lines(seen.anomaly_where),
        ),
        where=seen.anomaly_where,
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )


def _lines(where: str | None) -> tuple[str, ...]:
    call = "torch.autograd.set_detect_anomaly"
    return savings.lines(where, f"{call}(True)", f"{call}(False)")
