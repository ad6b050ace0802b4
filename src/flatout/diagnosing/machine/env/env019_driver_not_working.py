"""NVIDIA's driver is installed but does not work.

## What it sees

An NVIDIA GPU is on the bus and the driver lists none: its module is loaded, and NVML and nvidia-smi
fail or find no device; or the module is there for the running kernel and not loaded, without Secure
Boot. Causes with their own page (ENV001 to ENV012) are reported there instead.

## Why it matters

No program can use the GPU.

## Cure

It depends on the message. "GPU is lost": restart. "Unknown Error" in a container: restart it (on
the host a `systemctl daemon-reload` took its devices away). A missing library: reinstall the
driver, or ask the container toolkit for it. A GPU that is too old for the driver, or for its open
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
from flatout.installing import driver, shell, system_packages
from flatout.installing.target import Target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV019", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))
TURING = (7, 5)
"""Oldest compute capability of the open kernel modules."""
Way = tuple[str, tuple[str, ...]]


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the driver."""
    cards = driver_state.waiting(machine)
    if not cards or driver_state.listed(machine) or machine.container.wsl is not None:
        return
    if machine.container.kind is not None and machine.container.gpu_passed_through is not True:
        return
    there = machine.kernel.nvidia_module_on_disk is True
    idle = driver_state.module_missing(machine) and there and not machine.system.secure_boot
    if not idle and not _fails(machine, cards):
        return
    driver_facts = machine.driver("nvidia")
    problem = "NVIDIA's module is not loaded" if idle else "NVIDIA's driver does not work"
    text, commands = _way(machine, cards, idle)
    version = driver_facts and (
        driver_facts.kernel_version or driver_facts.installed_version or driver_facts.version
    )
    linux = machine.system.name == "Linux"
    facts = [
        driver_state.errors(driver_facts),
        f"on the bus and not listed: {driver_state.names(cards[:4])}",
        f"driver {version}" if version else "",
        f"loaded modules: {driver_state.modules(machine)}" if linux else "",
        driver_state.counted((machine.kernel.xids or ())[:4]),
    ]
    yield Diagnosis(
        title=f"{problem}: {driver_state.name(cards[0])} cannot be used"[:100],
        evidence="; ".join(filter(None, facts)),
        cure=Cure(text, commands),
    )


def _fails(machine: Machine, cards: tuple[Gpu, ...]) -> bool:
    """Whether the module is loaded (or this is Windows) but the driver lists nothing."""
    driver_facts = machine.driver("nvidia")
    windows = machine.system.name == "Windows"
    if not (driver_facts if windows else driver_state.loaded(machine)):
        return False
    silent = (
        driver_facts is not None
        and driver_facts.nvml_error is not None
        and driver_facts.version is None
    )
    return silent or all(card.driver_sees is False for card in cards)


def _way(machine: Machine, cards: tuple[Gpu, ...], idle: bool) -> Way:
    """The text and the lines that the message calls for."""
    place, driver_facts = driver_state.place(machine), machine.driver("nvidia")
    messages = driver_state.errors(driver_facts).lower()
    branch = next(filter(None, (driver_state.dropped(card, driver_facts) for card in cards)), None)
    if branch:
        text = f"Driver branch {branch} is the last one that supports this GPU: install that one."
        return text, driver.commands(place)
    capabilities = [capability for card in cards if (capability := driver_state.capability(card))]
    before_turing = any(capability < TURING for capability in capabilities)
    if driver_facts and driver_facts.open_kernel_module and before_turing:
        text = "The open kernel modules need a Turing GPU or newer: install the proprietary ones."
        return text, driver.commands(place)
    if machine.container.kind == "singularity" and _no_library(messages):
        return (
            "Every Singularity container shows the host's devices; the driver's libraries are in "
            "it only with --nv.",
            (
                "# On the host: singularity exec --nv IMAGE COMMAND",
                "# or: apptainer exec --nv IMAGE COMMAND",
            ),
        )
    if place.container:
        return _in_container(messages)
    if place.system == "Windows":
        return "Reinstall the driver and restart.", driver.commands(place)
    if "lost" in messages or any(xid.number == 79 for xid in machine.kernel.xids or ()):
        return (
            "The GPU has fallen off the bus. Restart; if it is lost again, check its power "
            "cables, riser and temperature, and have the card replaced.",
            (_log(place), system_packages.sudo(place, "reboot")),
        )
    if _no_library(messages):
        text = "The module is there but the driver's libraries are missing: reinstall them."
        return text, driver_state.repair(place)
    return _load_or_reload(place, idle)


def _load_or_reload(place: Target, idle: bool) -> Way:
    """The way where nothing else is known than whether the module is loaded."""
    if idle:
        return (
            "Load the module; if the kernel refuses it, its log says why. If it loads and is "
            "missing again after a restart, a file in /etc/modprobe.d blacklists it (prime-select "
            "intel writes one).",
            (
                system_packages.sudo(place, "modprobe nvidia") + " && nvidia-smi",
                _log(place),
                "grep -rnE 'blacklist +nvidia|install +nvidia.*/bin/(false|true)' /etc/modprobe.d "
                "/lib/modprobe.d /usr/lib/modprobe.d",
            ),
        )
    again = shell.remarks(driver.commands(place))
    return (
        "Read the kernel's log and reload the module; if that does not help, restart, and then "
        "reinstall the driver.",
        (_log(place), *driver.reload_commands(place), "# If it still fails:", *again),
    )


def _no_library(messages: str) -> bool:
    return "library not found" in messages or "couldn't find libnvidia-ml" in messages


def _in_container(messages: str) -> Way:
    if _no_library(messages):
        again = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        return (
            "The devices were passed through, but the driver's libraries were not. Let NVIDIA's "
            "container toolkit start the container: it brings both.",
            ("ldconfig -p | grep -E 'libcuda|libnvidia-ml'", f"# On the host: {again}"),
        )
    return (
        "Restart the container: it has lost access to its devices, as happens when systemd "
        "on the host reloads its units. The last line, at every boot of the host, keeps that from "
        "happening again.",
        (
            "# On the host: nvidia-smi must work there",
            "# On the host: docker restart CONTAINER",
            "# On the host: sudo nvidia-ctk system create-dev-char-symlinks --create-all",
        ),
    )


def _log(place: Target) -> str:
    return system_packages.sudo(place, "dmesg") + " | grep -iE 'NVRM|Xid|nvidia' | tail -n 20"
