"""The Intel GPU lacks its kernel driver or its user-space driver (Level Zero).

## What it sees

On Linux: an Intel GPU for training without a kernel driver while neither i915 nor xe is loaded; or
an XPU build of torch that imports and sees no GPU although the kernel driver holds one.

## Why it matters

`torch.xpu.is_available()` is False.

## Cure

Install the compute runtime and Level Zero; for the kernel driver a kernel that knows the GPU.

## References

- https://dgpu-docs.intel.com/driver/client/overview.html
- https://pytorch.org/docs/stable/notes/get_start_xpu.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.installing import driver, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV057", severity=Severity.ERROR, since="0.2.0")
MODULES = {"i915", "xe"}


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding if Intel's GPU is the one to train on."""
    gpus = software.capable(machine, "intel")
    place = target.of(machine)
    if not gpus or place.vendor != "intel" or not software.on(machine, "Linux") or place.wsl:
        return
    gpu, modules, torch = gpus[0], machine.kernel.modules, machine.torch
    no_kernel = gpu.kernel_driver is None and modules is not None and not MODULES & {*modules}
    xpu = torch is not None and (torch.build == "xpu" or torch.xpu is not None)
    blind = torch is not None and xpu and torch.imported is True and torch.xpu_available is False
    if not no_kernel and not (blind and gpu.kernel_driver in MODULES):
        return
    problem = "neither i915 nor xe is loaded" if no_kernel else "torch.xpu sees no GPU"
    yield Diagnosis(
        title=f"{software.gpu_name(gpu)} lacks its driver's {'kernel' if no_kernel else 'user'} "
        "side",
        evidence=f"{software.gpu_name(gpu)} at {gpu.pci_address or '?'}: kernel driver "
        f"{gpu.kernel_driver or 'none'}; {problem}",
        cure=Cure("Install Intel's driver and compute runtime.", driver.commands(place)),
    )
