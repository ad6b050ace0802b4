"""torch cannot use the Mac's GPU: Python runs under Rosetta, or MPS is not available.

## What it sees

- macOS on Apple silicon, and an x86-64 process.
- A Mac with an Apple GPU, and a torch that imports and says that MPS is not available, or was not
  built in.

## Why it matters

`device="mps"` fails and the training runs on the processor. Under Rosetta every instruction is
translated as well, and torch ends with 2.2, the last one with x86-64 wheels for macOS.

## Cure

Rosetta: an arm64 Python, and a new environment with it. Otherwise update macOS; if MPS is not built
in, install torch's own wheel.

## References

- https://developer.apple.com/documentation/apple-silicon/about-the-rosetta-translation-environment
- https://developer.apple.com/metal/pytorch/
- https://github.com/pytorch/pytorch/issues/139425
- https://github.com/pytorch/pytorch/issues/164943
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV038", severity=Severity.ERROR, since="0.2.0", hides=("ENV034", "ENV020"))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """At most one finding."""
    if machine.system.rosetta is True:
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
    else:
        yield from _without_mps(machine)


def _without_mps(machine: Machine) -> Iterator[Diagnosis]:
    torch = machine.torch
    gpus = machine.gpus_of("apple")
    if not gpus or torch is None or torch.imported is not True or torch.mps_available is not False:
        return
    if torch.mps_built is None:
        return
    macos = machine.system.distribution_version or "version not known"
    built = "built in" if torch.mps_built else "not built in"
    cure = (
        Cure("Update macOS: this torch needs a newer one.", ("softwareupdate --list",))
        if torch.mps_built
        else Cure("Install torch's own wheel; it has MPS.", software.install_torch(machine))
    )
    yield Diagnosis(
        title=f"{software.label(torch)} cannot use {gpus[0].name or 'the Mac GPU'}: no MPS",
        evidence=f"MPS is {built} and not available; macOS {macos}",
        cure=cure,
    )
