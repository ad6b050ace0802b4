"""An InfiniBand port is down, or slower than its siblings.

## What it sees

Some InfiniBand ports of this machine are active, and another is not, or runs at a lower rate than
most of them. Ports in Ethernet mode are left out: they often serve other purposes. If as many
healthy ports as GPUs remain, it is a note: the others may be for storage.

## Why it matters

NCCL spreads its rings over all ports, and a ring is as fast as its slowest link: one port at a
quarter of the rate slows every all-reduce of the whole job.

## Cure

Look at the port's state and error counters; reseat or change the cable; "init" means that no subnet
manager answers. To run without it: leave it out of NCCL_IB_HCA.

## References

- https://docs.nvidia.com/networking/
- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import shell, system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine, NetworkPort

CHECK = Check(code="ENV073", severity=Severity.WARNING, since="0.2.0")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for all ports that stand out."""
    ports = [port for port in machine.network_ports or () if port.link_layer == "infiniband"]
    active = [port for port in ports if port.state == "active"]
    rates = Counter(port.rate_gbit_per_s for port in active if port.rate_gbit_per_s is not None)
    if not active:
        return
    usual = max(rates, key=lambda rate: (rates[rate], rate), default=None)
    odd = [port for port in ports if _down(port) or _slow(port, usual)]
    if not odd:
        return
    names = ", ".join(port.name for port in odd)
    most = f" at {usual:g} Gbit/s" if usual is not None else ""
    well = [port for port in active if port not in odd]
    spare = 0 < len(machine.gpus or ()) <= len(well)
    down = [port for port in odd if _down(port)]
    state = "slow" if not down else "down" if len(down) == len(odd) else "down or slow"
    text = (
        "Check the port's state, cable and error counters; until it is repaired, leave it out of "
        "NCCL_IB_HCA."
    )
    if spare:
        text = f"Nothing, if the port is not meant for training (storage, or not cabled). {text}"
    place = target.of(machine)
    adapters = dict.fromkeys(port.name.partition("/")[0] for port in odd)
    commands = [
        *system_packages.commands(place, "infiniband"),
        *(f"ibstat {shell.quote(place, adapter)}" for adapter in adapters),
        "perfquery -x",
    ]
    if well:  # the leading = means "exactly these"; quoted because zsh would expand it
        ports_to_use = ",".join(port.name.replace("/", ":") for port in well)
        commands.append(f"export NCCL_IB_HCA='={ports_to_use}'")
    yield Diagnosis(
        title=f"InfiniBand {names} {'are' if len(odd) > 1 else 'is'} {state}"[:100],
        evidence=f"{'; '.join(map(_facts, odd))}; {len(well)} of {len(ports)} ports active{most}",
        cure=Cure(text, tuple(commands)),
        severity=Severity.NOTE if spare else None,
    )


def _down(port: NetworkPort) -> bool:
    return port.state is not None and port.state != "active"


def _slow(port: NetworkPort, usual: float | None) -> bool:
    rate = port.rate_gbit_per_s
    return port.state == "active" and None not in (rate, usual) and (rate or 0) < (usual or 0)


def _facts(port: NetworkPort) -> str:
    rate = f" at {port.rate_gbit_per_s:g} Gbit/s" if port.rate_gbit_per_s is not None else ""
    return f"{port.name}: {port.state or 'state not known'}{rate}"
