"""NVIDIA's driver is installed and does not work.

## What it sees

An NVIDIA GPU is on the bus and the driver lists none: its module is loaded, and NVML and nvidia-smi
fail or find no device; or the module is there for the running kernel and not loaded, without Secure
Boot. Causes that have a page of their own (ENV001 to ENV014) are told there and not here.

## Why it matters

No program can use the GPU.

## Evidence

What NVML and nvidia-smi say, the driver's version, the modules that are loaded, and Xid errors.

## Cure

It depends on the message. "GPU is lost": restart. "Unknown Error" in a container: start it anew (on
the host a `systemctl daemon-reload` took its devices away). A missing library: install the driver
anew, or ask the container toolkit for it. A GPU that is too old for the driver, or for its open
modules: another branch. Otherwise load the module by hand and read the kernel's log.

## References

- https://docs.nvidia.com/deploy/xid-errors/
- https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
- https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, system_packages
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Driver, Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV019", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))
TURING = (7, 5)
"""Oldest compute capability of the open kernel modules."""
Way = tuple[str, tuple[str, ...]]


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the driver."""
    cards = driver_state.waiting(machine)
    if not cards or driver_state.seen(machine) or machine.container.wsl is not None:
        return
    if machine.container.kind is not None and machine.container.gpu_passed_through is not True:
        return
    idle = _not_loaded(machine)
    if not idle and not _fails(machine, cards):
        return
    found = machine.driver("nvidia")
    what = "NVIDIA's module is not loaded" if idle else "NVIDIA's driver does not work"
    text, commands = _way(machine, cards, idle)
    yield Diagnosis(
        title=f"{what}: {driver_state.name(cards[0])} cannot be used"[:100],
        evidence="; ".join(filter(None, _facts(machine, found, cards))),
        cure=Cure(text, commands),
    )


def _not_loaded(machine: Machine) -> bool:
    there = machine.kernel.nvidia_module_on_disk is True
    return driver_state.module_missing(machine) and there and not machine.system.secure_boot


def _fails(machine: Machine, cards: tuple[Gpu, ...]) -> bool:
    """The module is loaded (or this is Windows), and the driver lists nothing."""
    found = machine.driver("nvidia")
    windows = machine.system.name == "Windows"
    if not (found if windows else driver_state.loaded(machine)):
        return False
    silent = found is not None and found.nvml_error is not None and found.version is None
    return silent or all(card.driver_sees is False for card in cards)


def _facts(machine: Machine, found: Driver | None, cards: tuple[Gpu, ...]) -> list[str]:
    version = found and (found.kernel_version or found.installed_version or found.version)
    linux = machine.system.name == "Linux"
    return [
        driver_state.errors(found),
        f"on the bus and not listed: {driver_state.named(cards[:4])}",
        f"driver {version}" if version else "",
        f"loaded modules: {driver_state.modules(machine)}" if linux else "",
        driver_state.counted((machine.kernel.xids or ())[:4]),
    ]


def _way(machine: Machine, cards: tuple[Gpu, ...], idle: bool) -> Way:
    """The text and the lines that the message calls for."""
    here, found = driver_state.here(machine), machine.driver("nvidia")
    said = driver_state.errors(found).lower()
    branch = next(filter(None, (driver_state.dropped(card, found) for card in cards)), None)
    if branch:
        text = f"Driver branch {branch} is the last one that supports this GPU: install that one."
        return text, driver.commands(here)
    if found and found.open_kernel_module and _before_turing(cards):
        text = "The open kernel modules need a Turing GPU or newer: install the proprietary ones."
        return text, driver.commands(here)
    if machine.container.kind == "singularity" and _no_library(said):
        return _without_nv()
    if here.container:
        return _in_container(said)
    if here.system == "Windows":
        return "Install the driver anew and restart.", driver.commands(here)
    if "lost" in said or any(xid.number == 79 for xid in machine.kernel.xids or ()):
        return _lost(here)
    if _no_library(said):
        text = "The module is there and the driver's libraries are not: install them anew."
        return text, driver_state.repair(here)
    return _not_yet_loaded(here) if idle else _unknown(here)


def _before_turing(cards: tuple[Gpu, ...]) -> bool:
    known = [capability for card in cards if (capability := driver_state.capability(card))]
    return any(capability < TURING for capability in known)


def _no_library(said: str) -> bool:
    return "library not found" in said or "couldn't find libnvidia-ml" in said


def _without_nv() -> Way:
    return (
        "Every Singularity container shows the host's devices; the driver's libraries are in it "
        "only with --nv.",
        (
            "# On the host: singularity exec --nv IMAGE COMMAND",
            "# or: apptainer exec --nv IMAGE COMMAND",
        ),
    )


def _in_container(said: str) -> Way:
    if _no_library(said):
        again = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        return (
            "The devices were passed through and the driver's libraries were not. Let NVIDIA's "
            "container toolkit start the container: it brings both.",
            ("ldconfig -p | grep -E 'libcuda|libnvidia-ml'", f"# On the host: {again}"),
        )
    return (
        "Start the container anew: it has lost the right to its devices, as happens when systemd "
        "on the host reloads its units. The last line, at every start of the host, keeps that from "
        "coming back.",
        (
            "# On the host: nvidia-smi must work there",
            "# On the host: docker restart CONTAINER",
            "# On the host: sudo nvidia-ctk system create-dev-char-symlinks --create-all",
        ),
    )


def _lost(here: Target) -> Way:
    return (
        "The GPU has fallen off the bus. Restart; if it is lost again, look at its power cables, "
        "riser and heat, and have the card exchanged.",
        (_log(here), system_packages.sudo(here, "reboot")),
    )


def _not_yet_loaded(here: Target) -> Way:
    return (
        "Load the module; if the kernel refuses it, its log says why. If it loads and is missing "
        "again after a restart, a file in /etc/modprobe.d forbids it (prime-select intel writes "
        "one).",
        (
            system_packages.sudo(here, "modprobe nvidia") + " && nvidia-smi",
            _log(here),
            "grep -rnE 'blacklist +nvidia|install +nvidia.*/bin/(false|true)' /etc/modprobe.d "
            "/lib/modprobe.d /usr/lib/modprobe.d",
        ),
    )


def _unknown(here: Target) -> Way:
    again = (line if line.startswith("#") else f"# {line}" for line in driver.commands(here))
    return (
        "Read the kernel's log and load the module anew; if that does not help, restart, and then "
        "install the driver anew.",
        (_log(here), *driver.reload_commands(here), "# If it still fails:", *again),
    )


def _log(here: Target) -> str:
    return system_packages.sudo(here, "dmesg") + " | grep -iE 'NVRM|Xid|nvidia' | tail -n 20"
