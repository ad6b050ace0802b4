"""Python runs as an Intel program under Rosetta on a Mac with an Apple processor.

## What it sees

macOS on Apple silicon, and an x86-64 process.

## Why it matters

torch's x86-64 wheels hold no MPS, so the GPU is out of reach; they ended with torch 2.2; and every
instruction is translated.

## Cure

An arm64 Python, and a new environment with it.

## References

- https://developer.apple.com/documentation/apple-silicon/about-the-rosetta-translation-environment
- https://developer.apple.com/metal/pytorch/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV038", severity=Severity.ERROR, since="0.2.0", hides=("ENV035", "ENV039", "ENV020")
)


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding."""
    if machine.system.rosetta is not True:
        return
    conda = target.of(machine).manager == "conda"
    lines = (
        ("CONDA_SUBDIR=osx-arm64 conda create --name torch python=3.13", "conda activate torch")
        if conda
        else (
            "arch -arm64 zsh",
            "uv venv --python cpython-3.13-macos-aarch64 .venv",
            "uv pip install --python .venv torch",
        )
    )
    yield Diagnosis(
        title="Python runs as x86-64 under Rosetta: no MPS, no new torch",
        evidence=f"{machine.cpu.name or 'Apple silicon'}, process: "
        f"{machine.system.architecture or 'x86_64'} under Rosetta",
        cure=Cure("Use an arm64 Python and install torch into a new environment.", lines),
    )
