"""The device waits for launches: many short kernels, each started by the host one by one.

## What it sees

The device is idle for a tenth of the step or more because the next kernel has not been launched
yet, and its kernels are short: on average less than 0.2 ms.

## Why it matters

Through Python, autograd and the driver one launch takes the host five to some tens of microseconds.
If the kernel itself is shorter, a faster device is only idle for longer.

## Cure

Fewer launches or all at once: `torch.compile` (its mode `reduce-overhead` records CUDA graphs),
CUDA graphs, foreach or fused optimizers, larger batches. The gain: seven tenths of the idle time
(what the loop launches outside of the model stays), less a microsecond for each kernel, which a
recorded graph still takes.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://developer.nvidia.com/blog/cuda-graphs/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.host import launch_gaps
from flatout.nouns import units
from flatout.nouns.anatomy import WAITS, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST001", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.1
MANY = 50
SHORT_MS = 0.2
IN_MODEL = 0.7
"""Share of the launches that are the model's; the rest of the loop is in no graph."""
IN_GRAPH_MS = 0.001
"""Time between two kernels of a recorded graph."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the step."""
    anatomy = profile.anatomy
    wait = launch_gaps.one_by_one_ms(profile)
    kernels = sum(part.launches for part in anatomy.parts if part.kind not in WAITS)
    if not savings.accelerated(profile) or kernels < MANY or wait < LEAST_SHARE * anatomy.step_ms:
        return
    mean = anatomy.busy_ms / kernels
    saves = savings.within(profile, IN_MODEL * (wait - IN_GRAPH_MS * kernels))
    if mean > SHORT_MS or not savings.worth(profile, saves):
        return
    where = profile.seen.model_where if profile.seen is not None else None
    if where is None:
        gaps = (gap for gap in profile.gaps if gap.kind is Kind.WAIT_HOST and gap.where)
        where = next((str(gap.where) for gap in gaps), None)
    yield Diagnosis(
        title=f"the device waits for launches, {units.share(wait / anatomy.step_ms)} of the step: "
        f"{kernels:,.0f} short kernels",
        evidence=_evidence(profile, wait, kernels, mean),
        cure=Cure(
            "Launch them together: compile the model, or record it as a CUDA graph.",
            savings.lines(
                "before training", "", 'model.compile(mode="reduce-overhead")  # fixed shapes'
            ),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        boost=savings.boost(profile, "cuda-graphs", "compile"),
        saves_ms=saves,
        reason=f"launched together the kernels follow each other: of {units.milliseconds(wait)} "
        f"idle {kernels:,.0f} x 1 us stay, and three tenths, for what is not in the model",
    )


def _evidence(profile: Profile, wait: float, kernels: float, mean: float) -> str:
    step = profile.anatomy.step_ms
    idle = (
        f"idle {units.milliseconds(wait)} of {units.milliseconds(step)} for launches; "
        f"{kernels:,.0f} kernels of {1000 * mean:,.0f} us on average, one launch every "
        f"{1000 * step / kernels:,.0f} us"
    )
    latency = profile.ceiling("launch-latency")
    return idle + (f" (this machine can do {latency:.1f} us)" if latency else "")
