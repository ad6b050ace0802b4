"""The CUDA toolkit (nvcc) is of another version than the CUDA that torch was built with.

## What it sees

The nvcc that a build would take (CUDA_HOME, else the first on PATH, else /usr/local/cuda) against
`torch.version.cuda`. If another toolkit on this machine has torch's version, it is a warning that
the wrong one comes first; if none has, another major version is a warning, another minor one a
note.

## Why it matters

torch itself does not use the toolkit: its wheels bring their own CUDA, so running and training are
not affected. Only building CUDA extensions is (flash-attn, apex, DeepSpeed's kernels, your own):
torch.utils.cpp_extension refuses another major version and warns of another minor one; the
extension may crash on import.

## Cure

Nothing, unless you build extensions. Then let CUDA_HOME and PATH name the toolkit that fits. If
there is none, install it (in a conda environment without administrator's rights), or the torch
built for this toolkit.

## References

- https://pytorch.org/docs/stable/cpp_extension.html
- https://docs.nvidia.com/cuda/cuda-installation-guide-linux/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import CudaToolkit, Machine

CHECK = Check(code="ENV026", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding: the one that fits stands behind another, or there is none."""
    toolkits, front = machine.toolkits or (), software.active_toolkit(machine)
    built_with = software.cuda_of(machine.torch)
    version = software.numbers(front.version) if front else None
    needed = software.numbers(built_with)
    if front is None or version is None or needed is None or version == needed:
        return
    fitting = next((one for one in toolkits if software.numbers(one.version) == needed), None)
    if fitting is not None:
        listed = ", ".join(f"{one.path} ({one.version or '?'})" for one in toolkits)
        reason = "CUDA_HOME names it" if front.cuda_home else "its nvcc comes first"
        yield Diagnosis(
            title=f"CUDA {front.version} comes first; torch was built with {built_with}",
            evidence=f"{listed}; first: {front.path} ({reason}); torch's CUDA is {built_with}",
            cure=Cure(
                f"Let CUDA_HOME and PATH name {fitting.path}; it matters for building extensions.",
                _put_first(machine, fitting),
            ),
        )
        return
    other_major = version[0] != needed[0]
    yield Diagnosis(
        title=f"nvcc is CUDA {front.version}, torch was built with {built_with}",
        evidence=f"{front.path} holds {front.version}; torch's CUDA is {built_with}",
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


def _put_first(machine: Machine, toolkit: CudaToolkit) -> tuple[str, ...]:
    place = target.of(machine)
    if software.on(machine, "Windows"):
        lines = system_packages.variable(place, "CUDA_PATH", toolkit.path)
        return (*lines, f'$env:Path = "{toolkit.path}\\bin;$env:Path"')
    lines = system_packages.variable(place, "CUDA_HOME", toolkit.path)
    return (*lines, f'export PATH="{toolkit.path}/bin:$PATH"')
