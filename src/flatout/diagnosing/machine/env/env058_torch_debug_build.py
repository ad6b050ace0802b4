"""torch is a debug build.

## What it sees

`torch.version.debug` is True.

## Why it matters

Debug builds check everything and are compiled without optimisation: many times slower on the host.

## Cure

Install the ordinary wheel, or build with DEBUG=0.

## References

- https://github.com/pytorch/pytorch/blob/main/CONTRIBUTING.md
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV058", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding."""
    torch = machine.torch
    if torch is None or torch.debug is not True:
        return
    yield Diagnosis(
        title=f"{software.label(torch)} is a debug build: many times slower",
        evidence=f"torch.version.debug is True; in {torch.location or 'a folder not known'}",
        cure=Cure("Install the ordinary wheel.", software.same_torch_again(machine)),
    )
