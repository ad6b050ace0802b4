"""Another cuDNN shadows the one that torch brings.

## What it sees

LD_LIBRARY_PATH or LD_PRELOAD leads to a cuDNN of the same major version and another minor one than
torch's own.

## Why it matters

torch's wheels find libcudnn itself by their own path, and cuDNN then opens its parts by their bare
names: those come from LD_LIBRARY_PATH first. Two releases in one process end in
CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH or a crash in the first convolution. Builds without such a
path, and LD_PRELOAD, take all of the foreign cuDNN; torch stops with "cuDNN version
incompatibility", or runs with an untested and often slower one.

## Cure

Remove the folder from the variable. torch needs no CUDA folder in LD_LIBRARY_PATH at all.

## References

- https://github.com/pytorch/pytorch/issues/80637
- https://github.com/pytorch/pytorch/issues/188892
- https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV028", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the first foreign cuDNN that clashes."""
    torch = machine.torch
    if torch is None or software.cuda_of(torch) is None:
        return
    own = software.brought(machine, "cudnn") or torch.cudnn
    for library, name in software.foreign_libraries(machine, "cudnn"):
        if not software.differ(library.version, own):
            continue
        if software.numbers(library.version, 1) != software.numbers(own, 1):
            continue  # libcudnn.so.8 and libcudnn.so.9 do not conflict
        loaded = f"; torch loaded {torch.cudnn}" if torch.cudnn else ""
        yield Diagnosis(
            title=f"cuDNN {library.version} in {name} shadows torch's {own}",
            evidence=f"{library.path} is {library.version}; torch brings {own}{loaded}",
            cure=Cure(
                f"Remove it from {name}; torch finds its own cuDNN without the variable.",
                software.without_folder(machine, name, library),
            ),
        )
        return
