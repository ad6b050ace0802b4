"""The compute mode of a GPU keeps this job off it.

## What it sees

An NVIDIA GPU is in compute mode "prohibited", which lets no CUDA program in; or in mode
"exclusive_process" while another process is on it.

## Why it matters

torch says "CUDA-capable device(s) is/are busy or unavailable" although memory is free. In
exclusive mode one process may use the GPU: a second one, also a data loader's worker that touches
CUDA, is refused.

## Cure

Set the mode back to default. It is set again at boot by whoever chose it, often a cluster's
scheduler: ask there first. In exclusive mode, end the other process or take another GPU.

## References

- https://docs.nvidia.com/deploy/nvidia-smi/
- https://docs.nvidia.com/cuda/cuda-programming-guide/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import system_packages, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV018", severity=Severity.ERROR, since="0.2.0", hides=("ENV025",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for each of the two modes."""
    cards = machine.gpus_of("nvidia")
    closed = [card for card in cards if card.compute_mode == "prohibited"]
    exclusive = [
        card for card in cards if card.compute_mode == "exclusive_process" and card.processes
    ]
    if closed:
        yield Diagnosis(
            title=f"compute mode prohibited on {len(closed)} of {len(cards)} NVIDIA GPUs",
            evidence=f"prohibited: {driver_state.names(closed)}",
            cure=Cure(
                "Set the compute mode back to default. On a cluster ask its administrators first.",
                _commands(machine, closed),
            ),
        )
    if exclusive:
        yield Diagnosis(
            title=f"{len(exclusive)} of {len(cards)} NVIDIA GPUs in exclusive use by another "
            "process",
            evidence=f"exclusive_process: {'; '.join(map(_facts, exclusive[:4]))}",
            cure=Cure(
                "Wait for that process or end it, take another GPU, or set the compute mode back "
                "to default so that several may share it.",
                ("nvidia-smi", *_commands(machine, exclusive)),
            ),
        )


def _facts(card: Gpu) -> str:
    processes = card.processes or ()
    names = ", ".join(f"{process.name or 'process'} ({process.pid})" for process in processes[:3])
    return f"{driver_state.names([card])} used by {names}"


def _commands(machine: Machine, cards: list[Gpu]) -> tuple[str, ...]:
    place = target.of(machine)
    indices = [str(card.index) for card in cards if card.index is not None]
    only = f"-i {','.join(indices)} " if len(indices) == len(cards) else ""
    return driver_state.on_host(
        place, (system_packages.sudo(place, f"nvidia-smi {only}-c DEFAULT"),)
    )
