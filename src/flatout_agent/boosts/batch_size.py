"""Train with larger batches.

## What it does
Multiplies the batch size of the training DataLoader (the one that shuffles) by `factor` before it
is iterated for the first time. Evaluation loaders keep theirs.

## Why it is faster
Small batches leave a device half empty: launching a kernel, reading the weights and updating the
parameters cost the same for 8 samples as for 32.

## When it does nothing
If the script accumulates gradients: its own control flow decides how many batches make a step. A
larger batch would change the effective batch without saving a single backward pass. Put the product
into the loader's batch size yourself instead. The same holds for a batch sampler of the script's
own, an IterableDataset, a loader that does not shuffle, or one with too few batches.

## What it may change
What is computed: fewer steps per epoch on larger batches, at the script's learning rate, which may
then be too low. Schedules that counted the loader's batches before training began expect more steps
than there will be. Batch statistics cover more samples. More memory is in use. It is tried only if
it is allowed by name.

## How it is undone
The loader's own batch size and sampler are put back; they hold from the next epoch on.

## References
- https://arxiv.org/abs/1706.02677
- https://arxiv.org/abs/1812.06162
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
    risk=Risk.SEMANTICS,
    moment=Moment.LOADER,
    switch=Switch.START,
    params={"factor": (2, 4)},
    redraws=True,
)
FEWEST_BATCHES = 4
"""An epoch must still have at least this many steps."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader of this job can be given larger batches."""
    if facts.micro_steps > 1:
        return (
            f"the script accumulates {facts.micro_steps:g} batches a step in its own loop: "
            "a larger batch would change the effective batch as well"
        )
    if not facts.loaders:
        return "no DataLoader was seen"
    reasons = [_why_not(loader, _factor(params)) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """In samples per second: most on an accelerator, where small batches leave it empty."""
    return 1.0 + (0.2 if facts.device == "cpu" else 0.4) * (1 - 1 / _factor(params))


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Put a batch sampler with larger batches around the loader's own sampler."""
    factor = _factor(params)
    reason = _why_not_target(target, factor)
    if reason is not None:
        raise Declined(reason)
    names = vars(target)
    before = {name: names[name] for name in ("batch_size", "batch_sampler")}
    size = int(names["batch_size"])
    # Through the dictionary: DataLoader refuses a later change of its batches.
    names["batch_size"] = size * factor
    names["batch_sampler"] = type(names["batch_sampler"])(
        target.sampler, size * factor, target.drop_last
    )
    reference = weakref.ref(target)

    def undo() -> None:
        loader = reference()
        if loader is not None:
            vars(loader).update(before)
            loader._iterator = None  # workers that stay for the next epoch hold the larger sampler

    return Applied(undo, lambda: (True, f"{size * factor} samples a batch instead of {size}"))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The DataLoader's argument that does the same."""
    sizes = [loader.batch_size for loader in facts.loaders if loader.batch_size]
    value = f"{sizes[0] * _factor(params)}" if sizes else f"{_factor(params)} * batch_size"
    return "\n".join(
        [
            "# in the training DataLoader(...); check the learning rate and its schedule",
            "loader = DataLoader(",
            "    dataset,",
            "    # what it is given now, and:",
            f"    batch_size={value},",
            ")",
        ]
    )


def _factor(params: Params) -> int:
    return max(1, int(params.get("factor", 2)))


def _why_not(loader: LoaderFacts, factor: int) -> str | None:
    if loader.iterable:
        return "an IterableDataset may form its batches itself"
    if loader.batch_size is None:
        return "the batches are formed by a batch sampler of the script's own"
    return _too_few(loader.batches, factor)


def _too_few(batches: int | None, factor: int) -> str | None:
    if batches is not None and batches < FEWEST_BATCHES * factor:
        return f"only {batches} batches: an epoch would have {-(-batches // factor)} steps"
    return None


def _why_not_target(loader: torch.utils.data.DataLoader[Any], factor: int) -> str | None:
    import torch

    data = torch.utils.data
    if loader._iterator is not None:
        return "the loader is already being iterated"
    if isinstance(loader.dataset, data.IterableDataset):
        return "an IterableDataset may form its batches itself"
    if loader.batch_size is None or type(loader.batch_sampler) is not data.BatchSampler:
        return "the batches are formed by a batch sampler of the script's own"
    sampler = loader.sampler
    shuffles = isinstance(
        sampler, data.RandomSampler | data.SubsetRandomSampler | data.WeightedRandomSampler
    ) or (isinstance(sampler, data.distributed.DistributedSampler) and sampler.shuffle)
    if not shuffles:
        return "the loader does not shuffle: it looks like one for evaluation"
    return _too_few(len(loader.batch_sampler), factor)
