"""Memory grows with each step, or losses of past steps are kept with their graphs.

## What it sees

- Losses from steps before the last ones are alive, and with them the graph of their forward pass.
- Otherwise memory in use after each step that rises steadily over the watched steps, by more than
  noise.

## Why it matters

A loss that is added up or put into a list as a tensor holds every node of its graph and all that
these have saved. Outputs in a list, a hook or an unbounded cache hold tensors of past steps, too.
The job ends with an out-of-memory error, the sooner the smaller the device, and each step pays for
new memory instead of using the old one again.

## Cure

Keep the number, not the tensor, wherever the loss is added up or put into a list:
`total += loss.detach()`, and `.item()` once it is printed. Otherwise look for what is appended in
the loop, and keep `.detach()`ed numbers. Where it is: record with
`torch.cuda.memory._record_memory_history()` and look at the snapshot; on a CPU, `tracemalloc`.

## References

- https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
- https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_memory, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="MEM005", severity=Severity.WARNING, since="0.2.0")
LEAST = 64 * 2**10
"""Bytes a step on an accelerator, where each tensor is counted."""
LEAST_CPU = 2 * 2**20
"""Bytes a step of a process on a CPU, which grows by itself for a while."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """At most one finding: of the losses, if they are kept."""
    watched = profile.seen
    if watched is None:
        return
    grown = device_memory.growth(watched.memory_bytes)
    if watched.losses_kept:
        growth = f"; memory grows by {units.size(grown)} a step" if grown else ""
        yield Diagnosis(
            title="losses of past steps are kept with their graphs",
            evidence="losses of earlier steps are still alive"
            f"{growth}; {device_memory.evidence(profile)}",
            cure=Cure(
                "Keep the number, not the tensor with its graph, where the loss is kept or added "
                "up.",
                savings.lines(None, "total += loss", "total += loss.detach()"),
            ),
            where=watched.backward_where,
        )
        return
    if grown is None or grown < (LEAST if savings.accelerated(profile) else LEAST_CPU):
        return
    now = watched.memory_bytes[-1]
    lasts = ""
    if watched.memory_total_bytes and watched.memory_total_bytes > now:
        lasts = f"; full after {(watched.memory_total_bytes - now) / grown:,.0f} more steps"
    yield Diagnosis(
        title=f"memory grows by {units.size(grown)} a step",
        evidence=f"{units.size(watched.memory_bytes[0])} after the first watched step, "
        f"{units.size(now)} after {len(watched.memory_bytes)}{lasts}",
        cure=Cure(
            "Find what keeps tensors of past steps, and keep numbers instead.",
            savings.lines(None, "history.append(output)", "history.append(output.detach().cpu())"),
        ),
    )
