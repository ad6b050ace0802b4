"""The CUDA toolkit (nvcc) is of another version than the CUDA that torch was built with.

## What it sees

The nvcc that a build would take (CUDA_HOME, else the first on PATH, else /usr/local/cuda) against
`torch.version.cuda`.

## Why it matters

torch itself does not use the toolkit: its wheels bring their own CUDA, so running and training are
not affected. Only building CUDA extensions is: torch.utils.cpp_extension refuses another major
version and warns of another minor one.

## Cure

Nothing, unless you build extensions. Then install the toolkit of torch's CUDA version (in a conda
environment without administrator's rights), or the torch built for this toolkit.

## References

- https://pytorch.org/docs/stable/cpp_extension.html
- https://docs.nvidia.com/cuda/cuda-installation-guide-linux/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV026", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """A warning for another major version, a note for another minor one."""
    toolkit = software.active_toolkit(machine)
    built_with = software.cuda_of(machine.torch)
    installed = software.numbers(toolkit.version) if toolkit else None
    needed = software.numbers(built_with)
    if toolkit is None or installed is None or needed is None or installed == needed:
        return
    other_major = installed[0] != needed[0]
    yield Diagnosis(
        title=f"nvcc is CUDA {toolkit.version}, torch was built with {built_with}",
        evidence=f"{toolkit.path} holds {toolkit.version}; torch's CUDA is {built_with}",
        cure=Cure(
            "Only for building CUDA extensions: "
            + ("they will refuse to build. " if other_major else "they build with a warning. ")
            + "Install the toolkit of torch's version beside the other and let CUDA_HOME name it.",
            (
                f"# only to build extensions, in a conda environment: "
                f"conda install -c nvidia cuda-toolkit={built_with}",
            ),
        ),
        severity=Severity.WARNING if other_major else Severity.NOTE,
    )
