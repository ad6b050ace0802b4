"""Each operator in a chain of elementwise operators runs its own kernel, through memory.

## What it sees

A model that is not compiled, in which elementwise operators (activations, additions, dropout,
masks) take a tenth of the step or more (on a CPU: a quarter) in many launches.

## Why it matters

Each of these operators reads its input from memory and writes its output back, to compute almost
nothing. Compiled, a chain of them is one kernel that reads and writes once.

## Cure

`model = torch.compile(model)` before training, or the boost compile. The first steps compile, which
takes seconds to minutes.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#fuse-operations
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN007", severity=Severity.WARNING, since="0.2.0")
SHARE, SHARE_CPU = 0.10, 0.25
"""Least share of the step; on a CPU compiling seldom pays for less."""
FEWEST = 20
"""Launches a step."""
FUSED = 0.5
FUSED_CPU = 0.2
"""Cautious shares of their time that fusing saves; on a CPU caches already save some."""
RANDOM = r"aten::(bernoulli|uniform|normal|random|exponential|rand|randn)\w*"
COMPILED = re.compile(r"triton_|cpp_fused|CompiledFunction|Torch-Compiled Region")


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the whole step."""
    anatomy = profile.anatomy
    updating = _updating(profile)
    took = anatomy.part(Kind.ELEMENTWISE) - operators.total(profile, _drawing(profile) + updating)
    launches = sum(part.launches for part in anatomy.parts if part.kind is Kind.ELEMENTWISE)
    launches -= sum(operator.calls for operator in updating)
    least = SHARE if savings.accelerated(profile) else SHARE_CPU
    if took < least * anatomy.step_ms or launches < FEWEST or _compiled(profile):
        return
    fused = FUSED if savings.accelerated(profile) else FUSED_CPU
    saving = device_time.of_device(
        profile,
        took * fused,
        f"elementwise operators take {units.milliseconds(took)}; fusing is taken to save "
        f"{units.share(fused)} of it (a cautious constant)",
    )
    if not saving.worth:
        return
    chain = [
        operator
        for operator in operators.of_kind(profile, Kind.ELEMENTWISE)
        if operator not in updating
    ]
    model = profile.seen.model_where if profile.seen is not None else None
    yield Diagnosis(
        title=f"{launches:.0f} elementwise launches a step, unfused: {units.milliseconds(took)}",
        evidence=f"{units.share(took / anatomy.step_ms)} of the step"
        + (f"; {operators.evidence(profile, chain)}" if chain else ""),
        cure=Cure(
            "Compile the model once, before training; the first steps then take longer.",
            savings.lines(None, "", "model = torch.compile(model)"),
        ),
        severity=saving.severity,
        where=operators.where(profile, chain) or model,
        boost=savings.boost(profile, "compile"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _updating(profile: Profile) -> list[Operator]:
    """Operators of an update by hand, which compiling the model does not reach."""
    return [
        operator
        for operator in operators.of_update(profile)
        if operator.kind is Kind.ELEMENTWISE and not operator.backward
    ]


def _drawing(profile: Profile) -> list[Operator]:
    """Random numbers on a CPU, which fusing does not speed up."""
    if savings.accelerated(profile):
        return []
    return operators.called(profile, RANDOM)


def _compiled(profile: Profile) -> bool:
    """Whether it is compiled or that is unknown."""
    if profile.job is not None and any(model.compiled for model in profile.job.models):
        return True
    names = [operator.name for operator in profile.operators]
    names += [kernel.name for kernel in profile.kernels]
    return not names or any(COMPILED.search(name) for name in names)
