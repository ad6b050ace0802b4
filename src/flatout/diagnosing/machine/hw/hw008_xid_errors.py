"""The NVIDIA driver has written errors (Xid) into the kernel's log since the machine started.

## What it sees

Lines "NVRM: Xid" in the kernel's log. Each number has its meaning, and most of them show whether
the program or the hardware is at fault:

- a fault of the program (notes): 13 and 31 illegal access or exception in a kernel, 32, 43 and 45
  its consequences, 69;
- a warning: 61 microcontroller, 63 a row or page was replaced, 92 many corrected errors, 94 a
  contained memory error, 137 and 145 NVLink;
- a fault of hardware, driver or power (errors): 48 double-bit memory error, 62 microcontroller
  halted, 64 a row could not be replaced, 74 NVLink, 79 fallen off the bus, 95 uncontained memory
  error, 119 and 120 GSP firmware, 140 unrecovered memory error, 143 initialisation.

## Why it matters

The driver's own words say why a program died, where CUDA only says "unspecified launch failure" or
"device-side assert", and whether running it again can help.

## Cure

By number: fix the program (compute-sanitizer), reset the GPU, update the driver, or have the
hardware checked and replaced.

## References

- https://docs.nvidia.com/deploy/xid-errors/
- https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import devices
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.hw import xid
from flatout.installing import driver, shell, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine, Xid

CHECK = Check(code="HW008", severity=Severity.ERROR, since="0.2.0")
RESET_ALL = "nvidia-smi --gpu-reset"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding per number."""
    by_number: dict[int, list[Xid]] = {}
    for error in machine.kernel.xids or ():
        by_number.setdefault(error.number, []).append(error)
    for number, errors in sorted(by_number.items()):
        meaning = xid.meaning(number)
        count = sum(error.count for error in errors)
        times = "once" if count == 1 else f"{count} times"
        yield Diagnosis(
            title=f"Xid {number}, {times}: {meaning.title}",
            evidence="; ".join(_facts(error, machine) for error in errors),
            cure=Cure(meaning.text, _commands(machine, errors, meaning.remedy)),
            severity=meaning.severity,
        )


def _facts(error: Xid, machine: Machine) -> str:
    gpu = _gpu(error, machine)
    where = devices.label(gpu) if gpu else f"GPU at {error.pci_address or 'an unknown address'}"
    text = f": {' '.join(error.text.split())[:160]}" if error.text else ""
    return f"{where}, {error.count} x{text}"


def _gpu(error: Xid, machine: Machine) -> Gpu | None:
    """The GPU of the error; the log's address has no function, as in 0000:3b:00."""
    address = (error.pci_address or "").partition(".")[0].lower()
    gpus = [
        gpu for gpu in machine.gpus or () if (gpu.pci_address or "").partition(".")[0] == address
    ]
    return gpus[0] if address and gpus else None


def _commands(machine: Machine, errors: list[Xid], remedy: xid.Remedy) -> tuple[str, ...]:
    place = target.of(machine)
    if remedy is xid.Remedy.PROGRAM:
        python = shell.python(place)
        return (
            "# see where it happens; YOUR_SCRIPT.py stands for the program:",
            f"CUDA_LAUNCH_BLOCKING=1 {python} YOUR_SCRIPT.py",
            f"compute-sanitizer --tool memcheck {python} YOUR_SCRIPT.py",
        )
    gpus = [gpu for gpu in (_gpu(error, machine) for error in errors) if gpu is not None]
    reset = devices.smi(list(dict.fromkeys(gpus)), "--gpu-reset") if gpus else RESET_ALL
    lines = {
        xid.Remedy.RESET: [
            reset,
            "dcgmi diag -r 3  # of datacenter-gpu-manager",
        ],
        xid.Remedy.RESET_ALL: [RESET_ALL, "nvidia-smi nvlink -s"],
        xid.Remedy.RESTART: ["nvidia-bug-report.sh", "reboot"],
        xid.Remedy.DRIVER: ["nvidia-bug-report.sh", "reboot"],
        xid.Remedy.LOOK: ["dmesg -T | grep -i xid"],
    }[remedy]
    update = driver.commands(place) if remedy is xid.Remedy.DRIVER else ()
    return (*update, *devices.settings(machine, lines))
