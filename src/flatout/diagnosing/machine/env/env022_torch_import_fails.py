"""torch is installed, but `import torch` fails.

## What it sees

The user's interpreter was asked to import torch, and the import ended with an error.

## Why it matters

Nothing runs. The error's last line shows which of a few causes it is: a CUDA library that is
missing, a system library in front of the wheel's own, the Visual C++ runtime missing on Windows,
NumPy 2 with a torch built for NumPy 1, or a C library older than the wheel needs.

## Cure

By the cause: reinstall torch together with its libraries, remove the foreign folder from
LD_LIBRARY_PATH, install the runtime, or install the NumPy that fits.

## References

- https://pytorch.org/get-started/locally/
- https://github.com/pytorch/pytorch/issues/119072
- https://github.com/pytorch/pytorch/issues/123097
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV022", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


@dataclass(frozen=True)
class Cause:
    """One way in which the import fails."""

    pattern: str
    text: str
    commands: Callable[[Machine, str], tuple[str, ...]]


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding with the error's line and the cure of its cause."""
    torch = machine.torch
    if torch is None or torch.imported is not False:
        return
    error = torch.import_error or "no message"
    cause = next(
        candidate for candidate in CAUSES if re.search(candidate.pattern, error, re.IGNORECASE)
    )
    evidence = [f"{software.label(torch)}: {software.shortened(error, 300)}"]
    path = software.variable(machine, "LD_LIBRARY_PATH")
    evidence += [f"LD_LIBRARY_PATH={path}"] if path else []
    without_folders = re.sub(r"[^\s\"']*[\\/](?=[^\\/\s]+\.(so|dll|dylib))", "", error)
    yield Diagnosis(
        title=software.shortened(f"import torch fails: {without_folders}"),
        evidence="; ".join(evidence),
        cure=Cure(cause.text, cause.commands(machine, error)),
    )


def _reinstall(machine: Machine, error: str) -> tuple[str, ...]:
    return software.same_torch_again(machine)


def _foreign_library(machine: Machine, error: str) -> tuple[str, ...]:
    names = [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if software.variable(machine, name)]
    if not names:
        return software.same_torch_again(machine)
    place = target.of(machine)
    return tuple(line for name in names for line in system_packages.variable(place, name, None))


def _module(machine: Machine, error: str) -> tuple[str, ...]:
    match = re.search(r"No module named '([A-Za-z0-9_]+)", error)
    name = match.group(1).replace("_", "-") if match else "typing-extensions"
    if name == "torch":  # a part of torch itself
        return software.same_torch_again(machine)
    return pytorch.package_commands(software.torch_target(machine), install=(name,))


def _system_library(machine: Machine, error: str) -> tuple[str, ...]:
    place = target.of(machine)
    if place.distribution == "nixos":
        return (
            "# in /etc/nixos/configuration.nix: programs.nix-ld.enable = true;",
            system_packages.sudo(place, "nixos-rebuild switch"),
            'export LD_LIBRARY_PATH="$NIX_LD_LIBRARY_PATH:/run/opengl-driver/lib"',
        )
    library = (re.findall(r"lib[^\s:'\"]+\.so", error) or ["libstdc++.so"])[0]
    names = {
        "libgomp.so": {"apt": "libgomp1", "dnf": "libgomp", "zypper": "libgomp1"},
        "libstdc++.so": {"apt": "libstdc++6", "dnf": "libstdc++", "zypper": "libstdc++6"},
        "libgcc_s.so": {"apt": "libgcc-s1", "dnf": "libgcc", "zypper": "libgcc_s1"},
    }.get(library, {})
    package = names.get(system_packages.package_manager(place) or "", library)
    return system_packages.install(place, package)


CAUSES = (
    Cause(
        r"iJIT_NotifyEvent",
        "torch from conda needs an MKL older than 2024.1.",
        lambda machine, error: pytorch.package_commands(
            target.of(machine), install=("mkl<2024.1",)
        ),
    ),
    Cause(
        r"undefined symbol",
        "Another version of the library is loaded before the one that torch brings. Take its "
        "folder out of the search path; where none is set, reinstall torch with its libraries.",
        _foreign_library,
    ),
    Cause(
        r"GLIBC_\d",
        "The system's C library is older than this wheel needs: a newer system or an older torch.",
        lambda machine, error: software.install_torch(machine),
    ),
    Cause(
        r"lib(cu|nccl|nv|cupti|amdhip|hip|roc|MIOpen|rccl)[^:]*\.so[^:]*: cannot open",
        "A library that comes with torch's wheels is missing: install torch with what it requires "
        "(not with --no-deps).",
        _reinstall,
    ),
    Cause(
        r"oneMKL FATAL ERROR",
        "MKL does not find the folder of its libraries. Where the current folder was removed, or "
        "may not be read, another one helps; otherwise torch's installation is damaged.",
        lambda machine, error: ('cd "$HOME"', *software.same_torch_again(machine)),
    ),
    Cause(
        r"lib(stdc\+\+|gomp|gcc_s)\.so[^:]*: cannot open",
        "A library of the system that every C++ program needs is not where the loader looks: "
        "torch's wheels do not bring it.",
        _system_library,
    ),
    Cause(
        r"DLL load failed|WinError (126|127|1114)|c10\.dll|fbgemm\.dll",
        "The Visual C++ runtime that torch's DLLs need is missing: install it, and start a new "
        "shell.",
        lambda machine, error: ("winget install --exact --id Microsoft.VCRedist.2015+.x64",),
    ),
    Cause(
        r"numpy.core.multiarray|_ARRAY_API|compiled using NumPy 1",
        "This torch was built for NumPy 1, and NumPy 2 is installed.",
        lambda machine, error: pytorch.package_commands(
            software.torch_target(machine), install=("numpy<2",)
        ),
    ),
    Cause(
        r"partially initialized module|circular import",
        "A file of the job itself is named torch.py, or a folder torch, and hides the package.",
        lambda machine, error: (
            "# rename the file torch.py or the folder torch next to the script",
        ),
    ),
    Cause(r"No module named", "A package that torch needs is missing.", _module),
    Cause(r"", "The installation is damaged: reinstall it.", _reinstall),
)
