"""Copy the next batch to the GPU while the GPU still computes.

## What it does
Learns from the first batches which of a loader's tensors the program moves to a CUDA device. From
then on it starts those copies by itself, on a stream of their own, as soon as the loader hands the
batch out; with loader workers, one batch ahead. When the program calls `.to(device)` or `.cuda()`
on that tensor, it gets the copy that is already under way.

## Why it is faster
An ordinary `.to(device)` waits until the device has done all the work before it, and only then
copies: neither the copy nor the launching of the next step overlaps with computing. A copy from
pinned memory on a side stream does.

## When it does nothing
Without CUDA; for batches that are not in pinned memory (see loader-pin-memory); for tensors that
the program converts or changes before it moves them, that require gradients, or that are of a
subclass; where the loader's batches are on the device already.

## What it may change
Results stay the same. Batches stay on the CPU until the program moves them, and the program still
gets a new tensor for each move. Memory for one more batch is in use on the device. With loader
workers each batch is fetched one request earlier; an error in fetching it is raised when it is
asked for. A batch that the program writes to through a NumPy view before it moves it is copied as
it came from the loader: a tensor's version counter does not count writes through such a view.

## How it is undone
`Tensor.to` and `Tensor.cuda` are torch's own again; a copy that was started is dropped.

## References
- https://pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
- https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch
from flatout_agent.speedups.early_copies import Prefetch, SideStreamCopies, catch_moves

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why this job has no copies to a CUDA device, or None if it may have."""
    if facts.device != "cuda":
        return f"the model is on {facts.device}: batches are not copied to a CUDA device"
    if not facts.loaders:
        return "no DataLoader was seen"
    if all(loader.batch_on_device for loader in facts.loaders):
        return "the batches come out on the device already"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """A fixed guess: the share of the step that copies take is not known beforehand."""
    return 1.08


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Watch this loader's batches and start their copies early."""
    import torch

    if not torch.cuda.is_available():
        raise Declined("there is no CUDA device")
    prefetch = Prefetch(SideStreamCopies(), ahead=target.num_workers > 0)
    undo_layer = job.wrap_batches(target, prefetch.layer)
    undo_moves = catch_moves()

    def undo() -> None:
        undo_layer()
        undo_moves()
        prefetch.forget()

    return Applied(undo, prefetch.engagement)


def by_hand(facts: JobFacts, params: Params) -> str:
    """Lines that most programs can use instead: pinned memory and copies that do not wait."""
    return "\n".join(
        [
            "# in DataLoader(...): pin_memory=True",
            "# in the loop, for each tensor of the batch:",
            'x = x.to("cuda", non_blocking=True)',
        ]
    )
