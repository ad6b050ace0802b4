"""There is no torch for this version of Python, or no newer one.

## What it sees

The interpreter's version against those for which torch's wheels are built: the installed release
where it does not work, else the newest. A torch that works is reported only if newer releases no
longer support this Python.

## Why it matters

pip finds no matching wheel ("No matching distribution found for torch"), or quietly installs a
release from years ago.

## Cure

A new environment with a Python that torch supports.

## References

- https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import target
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV034", severity=Severity.WARNING, since="0.2.0", hides=("ENV020",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding; its severity says whether any torch can be installed."""
    place = target.of(machine)
    minor, newest = place.python_minor, pytorch.newest()
    if machine.interpreter is None or minor is None or minor in newest.pythons:
        return
    torch = machine.torch
    works = torch is not None and torch.imported is True
    answered = torch is not None or machine.torch_missing
    newer = _order(minor) > _order(newest.pythons[-1].rstrip("t"))
    if not answered or (works and newer):
        return
    last = next(
        (release for release in reversed(pytorch.releases()) if minor in release.pythons), None
    )
    if torch is not None and not works:
        installed = pytorch.release(torch.version) if torch.version else None
        if installed is None or minor in installed.pythons:
            return
    reach = f"the last one for it is {last.newest_patch}" if last else "there never was one for it"
    title = f"no torch for Python {minor}" if not last else f"no new torch for Python {minor}"
    yield Diagnosis(
        title=title,
        evidence=f"Python {place.python}; torch {newest.newest_patch} is built for "
        f"{', '.join(newest.pythons)}; {reach}",
        cure=Cure("Make an environment with a supported Python.", software.new_environment(place)),
        severity=Severity.NOTE if works else Severity.WARNING if last else Severity.ERROR,
    )


def _order(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.rstrip("t").split(".") if part.isdecimal())
