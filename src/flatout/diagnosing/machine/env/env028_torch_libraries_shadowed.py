"""Another cuDNN or NCCL shadows the one that torch brings.

## What it sees

LD_LIBRARY_PATH or LD_PRELOAD leads to a cuDNN of the same major version and another minor one than
torch's own, or to a libnccl.so.2 of another version than torch's own. NCCL in LD_LIBRARY_PATH
beside a torch of pip's wheels is a note: torch's own path comes first.

## Why it matters

cuDNN: torch's wheels find libcudnn itself by their own path, and cuDNN then opens its parts by
their bare names: those come from LD_LIBRARY_PATH first. Two releases in one process end in
CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH or a crash in the first convolution. Builds without such a
path, and LD_PRELOAD, take all of the foreign cuDNN; torch stops with "cuDNN version
incompatibility", or runs with an untested and often slower one.

NCCL: all NCCL 2 releases share one file name, so the first one that is loaded serves the whole
process. LD_PRELOAD always wins. LD_LIBRARY_PATH wins for builds of torch that do not bring NCCL as
a wheel (conda, built from source), and for any library that loads NCCL before torch does. An older
NCCL ends in "undefined symbol: ncclCommRegister" and the like; ranks with different ones hang.

## Cure

Remove the folder from the variable, for NCCL on every machine of the job. torch needs no CUDA
folder in LD_LIBRARY_PATH at all. Keep it where it is intended (a vendor's NCCL for its own
network).

## References

- https://github.com/pytorch/pytorch/issues/80637
- https://github.com/pytorch/pytorch/issues/188892
- https://github.com/pytorch/pytorch/issues/119072
- https://github.com/pytorch/builder/pull/1150
- https://man7.org/linux/man-pages/man8/ld.so.8.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV028", severity=Severity.WARNING, since="0.2.0")
LABELS = {"cudnn": "cuDNN", "nccl": "NCCL"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each of the two: the first foreign one that clashes."""
    torch = machine.torch
    if torch is None or software.cuda_of(torch) is None:
        return
    for name, loaded in (("cudnn", torch.cudnn), ("nccl", torch.nccl)):
        wheel, label = software.brought(machine, name), LABELS[name]
        own = wheel or loaded
        for library, variable in software.foreign_libraries(machine, name):
            if not _clash(library.version, own):
                continue
            own_first = name == "nccl" and variable == "LD_LIBRARY_PATH" and wheel is not None
            verb = "competes with" if own_first else "shadows"
            in_use = f"; torch loaded {loaded}" if loaded else ""
            yield Diagnosis(
                title=f"{label} {library.version} in {variable} {verb} torch's {own}",
                evidence=f"{library.path} is {library.version}; torch brings {own}{in_use}",
                cure=Cure(
                    f"Remove it from {variable}, on every machine of the job; torch finds its own "
                    f"{label} without the variable.",
                    software.without_folder(machine, variable, library),
                ),
                severity=Severity.NOTE if own_first else None,
            )
            break


def _clash(version: str | None, own: str | None) -> bool:
    """Whether they share a file name and differ: libcudnn.so.8 and libcudnn.so.9 do not clash."""
    same_major = software.numbers(version, 1) == software.numbers(own, 1)
    return same_major and software.differ(version, own)
