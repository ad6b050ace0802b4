"""A compiled function gets inputs whose shapes keep changing.

## What it sees

Recompilations whose reason is a size that changed, or a compiled model that got more than four
input shapes.

## Why it matters

Compiled code is specialised for its shapes. After the second one torch compiles a version for
dynamic sizes, which is slower; with `dynamic=False` or `mode="reduce-overhead"` it compiles again,
or records another graph, for every shape.

## Cure

Pad to a few lengths (multiples of 64), drop the last odd batch (`drop_last=True`), or mark from the
start what changes: `torch._dynamo.mark_dynamic(x, 1)`, `torch.compile(model, dynamic=True)`.

## References

- https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.loop import compiling, loops
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="LOOP015", severity=Severity.WARNING, since="0.2.0", hides=("LOOP004",))
MANY = 4
FEWEST = 2


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    watched = profile.seen
    if watched is None:
        return
    shapes = compiling.of_shapes(watched.recompiles)
    models = profile.job.models if profile.job is not None else ()
    many = watched.input_shapes > MANY and any(model.compiled for model in models)
    if len(shapes) < FEWEST and not many:
        return
    saving = compiling.saving(profile)
    shape_counts = [f"{watched.input_shapes} shapes of the model's first input"] if many else []
    yield Diagnosis(
        title="compiled code gets inputs whose shapes keep changing",
        evidence="; ".join([*shape_counts, *([compiling.evidence(shapes)] if shapes else [])]),
        cure=Cure(
            "Pad to a few shapes, or mark from the start which dimension changes.",
            savings.lines(
                None, "model = torch.compile(model)", "model = torch.compile(model, dynamic=True)"
            ),
        ),
        where=watched.model_where
        or next((line for text in shapes if (line := loops.line_in(text))), None),
        saves_ms=saving.ms if saving.worth else None,
        reason=saving.reason if saving.worth else "",
    )
