"""torch is older than 2.0: no torch.compile, no fused attention.

## What it sees

The version of the installed torch.

## Why it matters

2.0 brought torch.compile, scaled_dot_product_attention (FlashAttention) and fused optimizers; newer
GPUs need later releases still. Programs written for 1.x run on 2.x almost always unchanged.

## Cure

Install the release that fits this machine.

## References

- https://pytorch.org/get-started/pytorch-2-x/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV050", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding."""
    torch = machine.torch
    release = software.numbers(torch.version) if torch else None
    if torch is None or release is None or release >= (2, 0):
        return
    yield Diagnosis(
        title=f"{software.label(torch)} has no torch.compile and no fused attention",
        evidence=f"installed: {torch.version}; newest: {pytorch.newest().newest_patch}",
        cure=Cure(
            "Install a 2.x release; test the job, since some old functions are gone.",
            software.install_torch(machine, stay=False),
        ),
    )
