"""Losses of past steps are kept with their graphs: memory grows with each step.

## What it sees

Losses from steps before the last ones are alive, and with them the graph of their forward pass.

## Why it matters

A loss that is added up or put into a list as a tensor holds every node of its graph and all that
these have saved. Memory grows until the job ends with an out-of-memory error, and each step pays
for new memory instead of using the old one again.

## Cure

Keep the number, not the tensor, wherever the loss is added up or put into a list:
`total += loss.detach()`, and `.item()` once it is printed.

## References

- https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM005", severity=Severity.WARNING, since="0.2.0", hides=("MEM006",))


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the loop."""
    watched = profile.seen
    if watched is None or not watched.losses_kept:
        return
    grown = device_memory.growth(watched.memory_bytes)
    growth = f"; memory grows by {units.size(grown)} a step" if grown else ""
    yield Diagnosis(
        title="losses of past steps are kept with their graphs",
        evidence="losses of earlier steps are still alive"
        f"{growth}; {device_memory.evidence(profile)}",
        cure=Cure(
            "Keep the number, not the tensor with its graph, where the loss is kept or added up.",
            savings.lines(None, "total += loss", "total += loss.detach()"),
        ),
        where=watched.backward_where,
    )
