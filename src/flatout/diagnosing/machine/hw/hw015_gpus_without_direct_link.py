"""GPUs of this machine talk to each other through the processors' own link.

## What it sees

Pairs of GPUs whose shortest path crosses the link between processors or between parts of one
(nvidia-smi topo: SYS or NODE), and that have no NVLink.

## Why it matters

Every exchange of gradients between them passes that link: some GB/s to 20 GB/s, with NVLink it is
hundreds. Data-parallel training of large models is then bound by the exchange.

## Cure

Keep ranks that talk most (tensor parallel) on close GPUs; exchange less often (gradient
accumulation, no_sync); fewer, larger buckets. Or run independent jobs on the two halves.

## References

- https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
- https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="HW015", severity=Severity.NOTE, since="0.2.0")
FAR = ("system", "node")


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the machine."""
    pairs = machine.gpu_pairs or ()
    far = [pair for pair in pairs if pair.link in FAR]
    if not far:
        return
    links = Counter(pair.link for pair in pairs)
    first = far[0]
    yield Diagnosis(
        title=f"{len(far)} of {len(pairs)} pairs of GPUs have no direct link",
        evidence=", ".join(f"{number} by {link}" for link, number in links.items())
        + f"; for example GPU {first.first} and GPU {first.second}: {first.link}",
        cure=Cure(
            "Keep ranks that talk most on close GPUs, and exchange gradients less often (gradient "
            "accumulation with no_sync).",
            ("nvidia-smi topo -m",) if machine.gpus_of("nvidia") else ("rocm-smi --showtopo",),
        ),
    )
