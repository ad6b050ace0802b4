"""torch's wheels are not built for this operating system, or for this version of Python.

## What it sees

- A 32-bit Python; a C library that is not glibc (musl, as in Alpine) or an older glibc than the
  wheels need; Windows before 10; macOS before the oldest that the wheels name; a Mac with an Intel
  processor, for which wheels ended with torch 2.2.
- Otherwise the interpreter's version against those for which torch's wheels are built: the
  installed release where it does not work, else the newest. A torch that works is reported only if
  newer releases no longer support this Python.

## Why it matters

pip finds no wheel at all ("No matching distribution found for torch"), quietly installs a release
from years ago, or the import ends with "version GLIBC_2.28 not found". If an older release still
fits, it is a warning. If a torch already works here, nothing is wrong now, and it is
a note that newer releases will not install.

## Cure

A newer system, or a container with one (the GPU's driver stays that of the host). A new environment
with a Python that torch supports.

## References

- https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix
- https://peps.python.org/pep-0600/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import pytorch as wheels
from flatout.installing import target
from flatout.knowledge.compat import pytorch
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

Reason = tuple[str, str, Cure, Severity]
"""Title, evidence, cure, and how bad it is."""
CHECK = Check(code="ENV034", severity=Severity.ERROR, since="0.2.0", hides=("ENV020", "ENV022"))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the first reason; milder if torch works or an older release still fits."""
    reason = (
        _bits(machine) or _libc(machine) or _windows(machine) or _macos(machine) or _intel(machine)
    )
    if reason is None:
        yield from _python_version(machine)
        return
    title, evidence, cure, severity = reason
    torch = machine.torch
    works = torch is not None and torch.imported is True
    working = f"; {software.label(torch)} works here" if torch and works else ""
    yield Diagnosis(
        title=title,
        evidence=evidence + working,
        cure=cure,
        severity=Severity.NOTE if works else severity,
    )


def _older(machine: Machine, title: str, evidence: str, cure: Cure) -> Reason:
    """The reason, with an older release as the cure if one still fits this system."""
    choice = software.choice(machine)
    if choice is None:
        return title, evidence, cure, Severity.ERROR
    text = f"torch {choice.version} still installs here. For newer ones: {cure.text}"
    lines = tuple(f"# or: {line.removeprefix('# ')}" for line in cure.commands)
    combined = Cure(text, (*software.install_torch(machine), *lines))
    return title, f"{evidence}; newest that fits: {choice.version}", combined, Severity.WARNING


def _bits(machine: Machine) -> Reason | None:
    python = machine.interpreter
    if python is None or python.bits != 32:
        return None
    line = "# install the 64-bit Python of your system"
    if software.on(machine, "Windows"):
        line = "winget install --architecture x64 Python.Python.3.13"
    cure = Cure("Install a 64-bit Python.", (line,))
    where = python.executable or "Python"
    return "a 32-bit Python: torch has no wheels for it", f"{where}: 32 bits", cure, Severity.ERROR


def _libc(machine: Machine) -> Reason | None:
    name, _, number = (machine.system.libc or "").partition(" ")
    need = pytorch.newest().glibc
    installed = software.numbers(number)
    needed = software.numbers(need)
    if name == "musl":
        title = "musl instead of glibc: torch has no wheels for it"
    elif name == "glibc" and installed and needed and installed < needed:
        title = f"glibc {number} is older than the {need} that torch's wheels need"
    else:
        return None
    system = machine.system.distribution_name or machine.system.distribution or "this system"
    text = "Use a newer distribution, or a container with one; the driver stays that of the host."
    image = "docker run --rm -it ubuntu:24.04"
    if machine.gpus_of("nvidia"):
        image = "docker run --rm -it --gpus all ubuntu:24.04"
    if machine.container.kind is not None:
        image = "# build the image on ubuntu:24.04 or debian:13 instead"
    newest = pytorch.newest().newest_patch
    evidence = f"{system}: {name} {number}; torch {newest} needs glibc {need}"
    return _older(machine, title, evidence, Cure(text, (image,)))


def _windows(machine: Machine) -> Reason | None:
    release = software.numbers(machine.system.release, 1)
    if not software.on(machine, "Windows") or release is None or release >= (10,):
        return None
    name = machine.system.distribution_name or "Windows"
    cure = Cure(
        "Upgrade to Windows 10 or 11, or install Linux.",
        ("# Windows 11: https://www.microsoft.com/software-download/windows11",),
    )
    evidence = f"{machine.system.release}; needs 10.0"
    return f"{name} is older than torch supports", evidence, cure, Severity.ERROR


def _macos(machine: Machine) -> Reason | None:
    installed = software.version(machine.system.distribution_version)
    oldest = software.version(pytorch.newest().macos)
    if (
        not software.on(machine, "Darwin")
        or installed is None
        or oldest is None
        or installed >= oldest
    ):
        return None
    cure = Cure("Update macOS.", ("softwareupdate --list",))
    title = f"macOS {installed} is older than torch's newest wheels need"
    return _older(machine, title, f"macOS {installed}; torch needs {oldest}", cure)


def _intel(machine: Machine) -> Reason | None:
    place = target.of(machine)
    native = machine.system.architecture == "x86_64" and machine.system.rosetta is False
    if not software.on(machine, "Darwin") or not native:
        return None
    entries = [
        release
        for release in pytorch.releases()
        if any(place.platform in build.systems for build in release.builds)
    ]
    if not entries:
        return None
    last = entries[-1].newest_patch
    text = f"torch {last} is the last for Macs with an Intel processor; it needs NumPy 1."
    numpy = wheels.package_commands(software.torch_target(machine), install=("numpy<2",))
    title = f"a Mac with an Intel processor: torch ends with {last}"
    evidence = f"{machine.cpu.name or 'x86_64'}; newest wheel for it: {last}"
    cure = Cure(text, (*software.install_torch(machine), *numpy))
    return title, evidence, cure, Severity.WARNING


def _python_version(machine: Machine) -> Iterator[Diagnosis]:
    """The severity says whether any torch can be installed."""
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
