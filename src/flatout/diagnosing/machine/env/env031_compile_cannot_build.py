"""A compiler, Python's headers or Triton is missing, so torch.compile cannot work.

## What it sees

For a torch that has torch.compile (2.0 or newer):

- A C++ compiler was looked for and none was found. A note on Windows: most jobs there do not
  compile.
- There is no Python.h for the interpreter that runs the training. Linux distributions put it in a
  package separate from Python.
- On Linux a CUDA or ROCm build of torch, with such a GPU, without the package triton beside it
  (usually after `pip install --no-deps`). On Windows it is a note, and only if a compiled function
  was tried and failed because Triton is missing: there torch's wheels do not bring it.

## Why it matters

On a CPU torch.compile writes C++ and needs g++ or clang++ (Windows: cl.exe). On a GPU Triton makes
the kernels, and builds a small C file against Python.h at the first launch. Compiled functions stop
with "Failed to find C compiler", InvalidCxxCompiler, "fatal error: Python.h: No such file or
directory" or "Cannot find a working triton installation"; extensions do not build either.

## Cure

Install the system's compiler (in a conda environment without administrator's rights, conda's), the
headers of exactly this Python version, and the Triton that this torch release was built with. On
Windows: triton-windows, a port that is kept by the community.

## References

- https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html
- https://pytorch.org/tutorials/prototype/inductor_windows.html
- https://github.com/pytorch/pytorch/issues/129351
- https://github.com/triton-lang/triton-windows
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch as wheels
from flatout.installing import system_packages, target
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.interpreter import Torch
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV031", severity=Severity.WARNING, since="0.2.0")
COMPILERS = {"Windows": "cl.exe", "Darwin": "clang++"}
TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each of the three."""
    python, torch = machine.interpreter, machine.torch
    release = software.numbers(torch.version) if torch else None
    if python is None or torch is None or release is None or release < (2, 0):
        return
    if python.compiler_searched and not python.compiler:
        lines = system_packages.commands(target.of(machine), "compiler")
        if python.conda and software.on(machine, "Linux"):
            lines += ("# or without administrator's rights: conda install -c conda-forge gxx",)
        compilers = COMPILERS.get(machine.system.name or "", "g++ and clang++")
        yield Diagnosis(
            title="no C++ compiler: torch.compile cannot work",
            evidence=f"looked for {compilers}, found none; {software.label(torch)} has "
            "torch.compile",
            cure=Cure("Install a compiler; only compiled functions need it.", lines),
            severity=Severity.NOTE if software.on(machine, "Windows") else None,
        )
    if python.headers is False:
        yield Diagnosis(
            title=f"Python.h is missing for Python {python.version or ''}".rstrip(),
            evidence=f"no headers for {python.executable or 'the interpreter'} "
            f"({python.version or 'version not known'})",
            cure=Cure(
                "Install the headers; torch.compile and extensions need them.",
                system_packages.commands(target.of(machine), "python-headers"),
            ),
        )
    if python.packages is not None and not software.package(machine, *TRITON):
        yield from _triton(machine, torch)


def _triton(machine: Machine, torch: Torch) -> Iterator[Diagnosis]:
    windows = software.on(machine, "Windows")
    failed = torch.compile_works is False and "triton" in (torch.compile_error or "").lower()
    linux = software.on(machine, "Linux") and machine.system.architecture == "x86_64"
    built_for = {"nvidia": software.cuda_of(torch), "amd": software.rocm_of(torch)}
    gpu_here = any(machine.gpus_of(vendor) for vendor, build in built_for.items() if build)
    if not gpu_here or not (linux or (windows and failed)):
        return
    release = pytorch.release(torch.version) if torch.version else None
    if software.rocm_of(torch) or release is None or release.triton is None:
        install = software.install_torch(machine)
    else:
        place, package = software.torch_target(machine), f"triton=={release.triton}"
        if place.system == "Windows":
            minor = ".".join(release.triton.split(".")[:2])
            package = f"triton-windows=={minor}.*"
        install = wheels.package_commands(place, install=(package,))
    failure = f"; a compiled function failed: {torch.compile_error}" if failed else ""
    yield Diagnosis(
        title=f"{software.label(torch)} has no Triton beside it: no torch.compile on the GPU",
        evidence=f"none of {', '.join(TRITON)} is installed{software.shortened(failure, 200)}",
        cure=Cure("Install the Triton of this torch release.", install),
        severity=Severity.NOTE if windows else None,
    )
