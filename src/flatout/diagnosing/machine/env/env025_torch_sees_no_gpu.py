"""The driver works and torch is built for CUDA, but torch sees no GPU.

## What it sees

NVIDIA's driver lists a GPU, torch is a CUDA build that imports, `torch.cuda.is_available()` is
False, and nothing that is known to hide a GPU is in the way: no CUDA_VISIBLE_DEVICES that leaves
it out, no closed device file, no driver too old for torch's CUDA.

## Why it matters

The training runs on the processor, or stops with "No CUDA GPUs are available".

## Cure

Load nvidia_uvm again (that needs no restart when nothing uses the GPU), else restart.

## References

- https://github.com/pytorch/pytorch/issues/49081
- https://github.com/pytorch/pytorch/issues/88639
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software, visible_devices
from flatout.installing import driver, system_packages, target
from flatout.knowledge.compat import cuda
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV025", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if no other cause is known."""
    torch = machine.torch
    built_for = software.cuda_of(torch)
    if torch is None or built_for is None or torch.cuda_available is not False:
        return
    gpus = [gpu for gpu in machine.gpus_of("nvidia") if gpu.driver_sees]
    if not gpus or _explained(machine, built_for):
        return
    version = (driver_facts := machine.driver("nvidia")) and driver_facts.version
    message = torch.cuda_error or "no message"
    yield Diagnosis(
        title=f"torch sees no GPU, but the driver sees {software.gpu_name(gpus[0])}",
        evidence=f"{software.label(torch)} (CUDA {built_for}), driver {version or '?'}: "
        f"{software.shortened(message, 300)}",
        cure=_cure(machine, message),
    )


def _explained(machine: Machine, built_for: str) -> bool:
    """Whether a cause that another check reports hides the GPU."""
    driver_facts = machine.driver("nvidia")
    version = driver_facts.version if driver_facts else None
    too_old = (
        version is not None
        and cuda.driver_runs(version, built_for, driver_state.versions_system(machine)) is False
    )
    closed = any(
        False in (file.exists, file.readable, file.writable)
        for file in machine.kernel.device_files or ()
        if "nvidia" in file.path or "dxg" in file.path
    )
    gpus = machine.gpus_of("nvidia")
    broken = driver_facts is not None and bool(driver_facts.nvml_error)
    prohibited = all(gpu.compute_mode == "prohibited" for gpu in gpus)
    sliced = any(gpu.mig and not gpu.mig_slices for gpu in gpus)
    fabric = machine.kernel.fabric_manager is False
    value = software.variable(machine, visible_devices.NAME)
    hidden = value is not None and (
        visible_devices.hides_all(value) or visible_devices.read(value, gpus).wrong is not None
    )
    return too_old or closed or broken or prohibited or sliced or fabric or hidden


def _cure(machine: Machine, message: str) -> Cure:
    place = target.of(machine)
    linux = software.on(machine, "Linux") and not place.wsl and not place.container
    if linux and "unknown error" in message.lower():
        line = system_packages.sudo(place, "modprobe -r nvidia_uvm")
        again = system_packages.sudo(place, "modprobe nvidia_uvm")
        text = "Stop what uses the GPU and load nvidia_uvm again; suspending breaks its state."
        return Cure(text, (line, again))
    text = "Load the driver's modules again, or restart; then ask torch once more."
    if linux:
        return Cure(text, driver.reload_commands(place))
    if place.wsl:
        return Cure("Restart WSL from Windows, then ask again.", ("wsl.exe --shutdown",))
    if place.container:
        remark = "# restart the container; if it stays so, restart the host"
        return Cure("The container lost the GPU, or the host's driver has changed.", (remark,))
    return Cure("Restart the machine, then ask torch once more.", ("shutdown /r /t 0",))
