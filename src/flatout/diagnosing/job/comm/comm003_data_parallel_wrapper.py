"""The model is wrapped in DataParallel: one process drives all GPUs.

## What it sees

The model is an `nn.DataParallel`.

## Why it matters

One Python process copies the model to all GPUs in each step, scatters the batch, launches every
GPU's kernels in turn under one interpreter lock, and gathers outputs and gradients on the first.
DistributedDataParallel has a process for each GPU and overlaps the exchange of gradients with the
backward pass.

## Cure

`flatout run --gpus all train.py` trains the same script with a process for each GPU: the batch, the
loss and the names in the state dict stay. Or DistributedDataParallel, started with torchrun. The
gain: the copies between the devices and the waiting for launches of the others, which are no longer
launched from this process.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
- https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.comm import communication
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile

CHECK = Check(code="COMM003", severity=Severity.WARNING, since="0.2.0")
OF_OTHERS = 0.5
"""Least share of launches that are for the other GPUs, if there are at least two."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the model."""
    if communication.wrapped(profile) != "DataParallel":
        return
    between = sum(copy.exposed_ms for copy in profile.copies if copy.direction in ("PtoP", "DtoD"))
    between = max(between, profile.anatomy.part(Kind.COMMUNICATION))
    launches = profile.anatomy.part(Kind.WAIT_HOST)
    saves = savings.within(profile, between + OF_OTHERS * launches)
    where = profile.seen.model_where if profile.seen is not None else None
    yield Diagnosis(
        title="the model runs under DataParallel, one process for all GPUs",
        evidence=f"{units.milliseconds(between)} of a step in copies between GPUs, "
        f"{units.milliseconds(launches)} waiting for launches",
        cure=Cure(
            "Train with a process for each GPU: flatout run --gpus all does so without an edit. By "
            "hand: DistributedDataParallel, started with torchrun.",
            (
                "flatout run --gpus all train.py",
                *savings.lines(
                    "where the model is wrapped",
                    "model = nn.DataParallel(model)",
                    'dist.init_process_group("nccl"); rank = int(os.environ["LOCAL_RANK"])',
                    "torch.cuda.set_device(rank)",
                    "model = DistributedDataParallel(model.to(rank), device_ids=[rank])",
                    "loader = DataLoader(dataset, sampler=DistributedSampler(dataset), ...)",
                ),
                "torchrun --standalone --nproc-per-node=gpu train.py",
            ),
        ),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(between)} of copies between GPUs and half of the "
        f"{units.milliseconds(launches)} waiting for launches go",
    )
