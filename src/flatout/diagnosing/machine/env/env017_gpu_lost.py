"""The bus shows an NVIDIA GPU that the driver does not list.

## What it sees

On a machine whose driver lists some NVIDIA GPUs, another one is on the PCI bus and not among them.
Or vfio-pci, the kernel's driver for handing devices to virtual machines, holds a GPU. In containers
nothing is reported: they are given the GPUs they may see; nor for GPUs that a batch system
keeps from this job.

## Why it matters

A GPU that has fallen off the bus (Xid 79) is gone until the next restart; jobs that used it have
died, and jobs that want all GPUs fail or hang. A GPU held by vfio-pci is reserved on purpose: a
note as long as other GPUs are there.

## Cure

Read the kernel's log, then restart (a full power cycle helps if a restart does not). If it happens
again, check power cables, risers and temperature, and have the card replaced. A GPU that its driver
no longer supports needs an older driver branch.

## References

- https://docs.nvidia.com/deploy/xid-errors/
- https://docs.kernel.org/driver-api/vfio.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, system_packages
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV017", severity=Severity.ERROR, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for lost GPUs, one for those held for virtual machines."""
    if machine.container.kind is not None or machine.container.wsl is not None:
        return
    unlisted = [card for card in driver_state.on_bus(machine) if card.driver_sees is False]
    passed_through = [card for card in unlisted if card.kernel_driver == "vfio-pci"]
    lost = [card for card in unlisted if card.kernel_driver not in driver_state.ELSEWHERE]
    if len(lost) > len(driver_state.withheld(machine)) and driver_state.listed(machine):
        yield _lost(machine, lost)
    if passed_through:
        yield _passed_through(machine, passed_through)


def _lost(machine: Machine, lost: list[Gpu]) -> Diagnosis:
    listed = len(driver_state.listed(machine))
    place, driver_facts = driver_state.place(machine), machine.driver("nvidia")
    branch = next(filter(None, (driver_state.dropped(card, driver_facts) for card in lost)), None)
    places = {_place(card.pci_address) for card in lost}
    xids = [xid for xid in machine.kernel.xids or () if _place(xid.pci_address) in places]
    counts = driver_state.counted(xids)
    evidence = (
        f"not listed by the driver: {driver_state.names(lost)}; bound to: "
        f"{lost[0].kernel_driver or 'no driver'}; listed: {listed}"
        + (f"; {counts}" if counts else "")
    )
    title = f"the driver lists {listed} of {listed + len(lost)} NVIDIA GPUs"
    if branch:
        text = f"Driver branch {branch} is the last one for that GPU: install it, or do without it."
        return Diagnosis(title, evidence, Cure(text, driver.commands(place)))
    if machine.system.name == "Windows":
        lines: tuple[str, ...] = ("Get-PnpDevice -Class Display", "Restart-Computer")
    else:
        log = system_packages.sudo(place, "dmesg | grep -iE 'NVRM|Xid|fallen off' | tail -n 20")
        lines = (
            log,
            f"lspci -s {lost[0].pci_address} -vv",
            system_packages.sudo(place, "reboot"),
        )
    text = (
        "Save running work, read the log, and restart; power off for a minute if that "
        "does not bring it back. If it is lost again, check its power cables, riser and "
        "temperature."
    )
    return Diagnosis(title, evidence, Cure(text, lines))


def _place(address: str | None) -> str:
    """The address without its function, as the kernel's log writes it: 0000:3b:00."""
    return (address or "").lower().partition(".")[0]


def _passed_through(machine: Machine, gpus: list[Gpu]) -> Diagnosis:
    listed = len(driver_state.listed(machine))
    place = driver_state.place(machine)
    address = gpus[0].pci_address
    device = f"/sys/bus/pci/devices/{address}"
    return Diagnosis(
        title=f"{len(gpus)} NVIDIA GPU(s) held by vfio-pci for virtual machines",
        evidence=f"bound to vfio-pci: {driver_state.names(gpus)}; listed by the driver: {listed}",
        cure=Cure(
            "Nothing, if a virtual machine is to have it. To use it here, give it back to NVIDIA's "
            "driver, and remove vfio-pci's ids= option from /etc/modprobe.d and the kernel's "
            "command line.",
            (
                f"echo {address} | {system_packages.sudo(place, f'tee {device}/driver/unbind')}",
                f"echo nvidia | {system_packages.sudo(place, f'tee {device}/driver_override')}",
                f"echo {address} | {system_packages.sudo(place, 'tee /sys/bus/pci/drivers_probe')}",
                "grep -rn vfio-pci /etc/modprobe.d /proc/cmdline",
            ),
        ),
        severity=Severity.NOTE if listed else None,
    )
