"""NVIDIA's fabric manager does not run on a machine with NVSwitch.

## What it sees

A GPU says that its NVSwitch fabric is not started or still in progress, or the service
nvidia-fabricmanager is known not to run although there are NVSwitches. If every GPU's fabric is
complete, nothing is reported: in some virtual machines the service runs on the host.

## Why it matters

On HGX and DGX machines (A100, H100, H200, B200 with SXM) the fabric manager sets up the switches.
Until it has, nvidia-smi works and CUDA does not: torch says "Error 802: system not yet
initialized", also for a single GPU.

## Cure

Install the fabric manager of exactly the driver's version, start it, and let it start at boot. If
it ends at once, its log says why; a version other than the driver's is the usual reason. Machines
with B200 or newer also need the nvlsm package.

## References

- https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV016", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))
UNREADY = ("not_started", "in_progress")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the machine."""
    cards = driver_state.listed(machine)
    states = Counter(card.nvlink_fabric for card in cards if card.nvlink_fabric)
    unready = any(states[state] for state in UNREADY)
    stopped = machine.kernel.fabric_manager is False and machine.container.kind is None
    complete = states["completed"] == len(cards)
    if not cards or not (unready or (stopped and not complete)):
        return
    driver_facts, place = machine.driver("nvidia"), target.of(machine)
    service = {True: "runs", False: "does not run", None: "not known"}
    message = driver_state.torch_says(machine)
    fabric = ", ".join(f"{count} GPU(s) {state}" for state, count in sorted(states.items()))
    version = (driver_facts.version if driver_facts else None) or "of unknown version"
    name = "nvidia-fabricmanager"
    yield Diagnosis(
        title=f"the fabric manager has not set up the NVSwitches of {len(cards)} GPUs",
        evidence=f"nvidia-fabricmanager: {service[machine.kernel.fabric_manager]}; fabric: "
        f"{fabric or 'not known'}; driver {version}; {driver_state.name(cards[0])}"
        + (f"; {message}" if message else ""),
        cure=Cure(
            f"Install the fabric manager of exactly the driver's version ({version}), start it and "
            "let it start at boot. Just after a start the fabric may need some minutes.",
            driver_state.on_host(
                place,
                (
                    *system_packages.commands(place, "fabric-manager"),
                    system_packages.sudo(place, f"systemctl restart {name}"),
                    f"systemctl status --no-pager {name}",
                    system_packages.sudo(place, f"journalctl -u {name} -b --no-pager | tail -n 20"),
                    f"# if the log names another version than {version}: update the driver too, "
                    "and restart",
                    "nvidia-smi -q | grep -A 4 -i fabric",
                ),
            ),
        ),
        severity=Severity.WARNING if driver_state.cuda_works(machine) else None,
    )
