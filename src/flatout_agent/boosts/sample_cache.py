"""Keep the samples of a dataset in memory, so that they are decoded in the first epoch only.

## What it does
Keeps a copy of each sample that the dataset returns, by its index. When an index is asked for
again, the copy goes to the collate function instead. Loader workers that are forked share the
copies: a sample that one of them has read comes from memory in all of them. Only datasets that
return the same sample for the same index are cached: from the first epoch on, some samples are read
twice and compared bit for bit, and the random generators and the dataset's attributes are checked
around every read.

## Why it is faster
Reading and decoding a file costs milliseconds, and without augmentation the second epoch does all
of it again for the same result. Nothing is gained in the first epoch: a program that sees each
sample once gets no faster, and that cannot be known beforehand.

## When it does nothing
With loader workers that are not forked, which share no memory, or that the loader keeps for all
epochs (`persistent_workers`) and had already started; for an IterableDataset, a dataset without a
length, one that loads whole batches by itself (`__getitems__`), one of tensors in memory, one that
holds random generators or whose code names one; if loading takes little of a step; if
all samples would take more than a quarter of the free memory, within the control group's limit; for
samples of types that it cannot copy or that are on an accelerator. The first random number that a
sample draws, the first difference between two reads, or attributes that change with every read
switch it off for good.

## What it may change
Nothing, for a dataset that is as deterministic as it looks. About 16 samples in each epoch, and one
in 61, are read once more than before. Setting an attribute of the dataset empties the cache;
other changes (rewritten files, items deep inside a long list) are found only when the next samples
are compared. Augmentation that leaves most samples as they are and draws from a source unknown to
Python, NumPy and PyTorch may go unnoticed.

## How it is undone
Running iterators read from the dataset again. While tuning switches it off and on, the samples
stay: when switched on again, it checks the dataset's attributes and compares up to a batch of
samples before it returns any. They are dropped when tuning decides against it, and when the loader
is deleted.

## References
- https://pytorch.org/docs/stable/data.html#map-style-datasets
- https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_loading, why_no_cache
from flatout_agent.limits import spare_memory
from flatout_agent.speedups.samples import kept_samples, samples, shared_samples
from flatout_agent.speedups.samples.kept_samples import KeptSamples
from flatout_agent.speedups.samples.shared_samples import SharedSamples
from flatout_agent.speedups.workers import worker_safety
from flatout_agent.speedups.workers.fresh_workers import SPAWNED, why_not_fresh

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    conflicts=("loader-workers",),
    fills=True,
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader's samples can be cached, or None if at least one loader's may be."""
    return why_no_cache(facts, _why_not)


def promise(facts: JobFacts, params: Params) -> float:
    """Most of loading: nothing is gained in the first epoch, and collating stays."""
    return speedup_of_loading(facts, 4.0)


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Cache this loader's samples, in running iterators and in later ones."""
    reason = _why_not_target(target)
    if reason is not None:
        raise Declined(reason)
    if target.num_workers:
        shared = shared_samples.of_loader(job, target)
        shared.begin()
        return Applied(shared.rest, shared.engagement, shared.batches_to_ready)
    cache = kept_samples.of_loader(job, target)
    undo_layer = job.wrap_batches(target, cache.layer)
    cache.begin()

    def undo() -> None:
        undo_layer()
        cache.rest()

    return Applied(undo, cache.engagement, cache.batches_to_ready)


def forget(job: Job) -> None:
    """Release the samples that outlasted `undo`."""
    caches: list[KeptSamples | SharedSamples] = [
        *kept_samples.of_job(job),
        *shared_samples.of_job(job),
    ]
    for cache in caches:
        cache.forget()


def by_hand(facts: JobFacts, params: Params) -> str:
    """A dataset around the dataset."""
    return "\n".join(
        [
            "class Kept(torch.utils.data.Dataset):",
            "    def __init__(self, dataset):",
            "        self.dataset, self.samples = dataset, {}",
            "",
            "    def __len__(self):",
            "        return len(self.dataset)",
            "",
            "    def __getitem__(self, index):  # right only without random augmentation",
            "        if index not in self.samples:",
            "            self.samples[index] = self.dataset[index]",
            "        return self.samples[index]",
            "",
            "loader = DataLoader(Kept(dataset), num_workers=0)  # and what it is given now",
        ]
    )


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.num_workers and loader.start_method != "fork":
        return SPAWNED
    if loader.iterable:
        return "an IterableDataset: its samples have no index"
    if loader.dataset == "TensorDataset":
        return "the samples are in memory already"
    return None


def _why_not_target(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    import torch

    data = torch.utils.data
    dataset: Any = loader.dataset
    reason = why_not_fresh(loader) if loader.num_workers else None
    if reason is not None:
        return reason
    if isinstance(dataset, data.IterableDataset):
        return "an IterableDataset: its samples have no index"
    try:
        len(dataset)
    except Exception as error:
        return f"the dataset has no length ({type(error).__name__})"
    levels = list(samples.levels(dataset))
    sources = [level for level in levels if not samples.combines(level)]
    if all(type(source) is data.TensorDataset for source in sources):
        return "the samples are in memory already"
    if any("__getitems__" in getattr(level, "__dict__", {}) for level in levels) or any(
        getattr(source, "__getitems__", None) for source in sources
    ):
        return "the dataset loads whole batches: a sample may depend on the others of its batch"
    if worker_safety.random_generators(loader) or any(map(samples.names_generator, sources)):
        return "the dataset has a random generator of its own"
    return "the amount of free memory is unknown here" if spare_memory() is None else None
