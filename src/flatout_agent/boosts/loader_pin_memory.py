"""Put batches into pinned memory, from which the GPU copies by itself.

## What it does
Sets `pin_memory` on each DataLoader just before it is iterated for the first time.

## Why it is faster
A copy from ordinary memory goes through a buffer of the driver, and the program waits for it. From
pinned (page-locked) memory the device reads directly, about twice as fast, and the copy can overlap
with computation. With loader workers, a separate thread does the pinning.

## When it does nothing
Without a CUDA device; if the loader already pins; if its batches are already on the device. With
`num_workers=0` the main process pins, which often costs as much as it saves.

## What it may change
Results stay the same. Pinned memory cannot be swapped out. As with PyTorch's own pinning, a batch
that is a plain tuple comes out as a list, and a batch object of the program's own has its
`pin_memory` method called.

## How it is undone
The loader's own setting is put back; it holds from the next epoch on.

## References
- https://pytorch.org/docs/stable/data.html#memory-pinning
- https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader of this job can gain from it, or None if at least one may."""
    if facts.device != "cuda":
        return f"the model is on {facts.device}: pinned memory is for copies to CUDA devices"
    if not facts.loaders:
        return "no DataLoader was seen"
    reasons = [_why_not(loader) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """More if a thread beside the workers does the pinning."""
    return 1.05 if any(loader.num_workers for loader in facts.loaders) else 1.02


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Let this loader pin its batches."""
    import torch

    if not torch.cuda.is_available():
        raise Declined("there is no CUDA device")
    if target.pin_memory:
        raise Declined("the loader pins its batches already")
    if target._iterator is not None:
        if "_get_iterator" not in vars(target):
            raise Declined("the loader keeps its workers, which were started without pinning")
        target._iterator = None  # workers of loader-workers: they can be started anew
    target.pin_memory = True
    reference = weakref.ref(target)

    def undo() -> None:
        loader = reference()
        if loader is not None:
            loader.pin_memory = False
            loader._iterator = None  # workers kept for the next epoch would go on pinning

    return Applied(undo)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The DataLoader's argument that does the same."""
    return "\n".join(
        [
            "# in DataLoader(...); copy with .to(device, non_blocking=True)",
            "loader = DataLoader(",
            "    dataset,",
            "    # what it is given now, and:",
            "    pin_memory=True,",
            ")",
        ]
    )


def _why_not(loader: LoaderFacts) -> str | None:
    return "the loader pins its batches already" if loader.pin_memory else None
