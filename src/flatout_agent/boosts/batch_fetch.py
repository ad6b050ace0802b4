"""Fetch each batch of a dataset in memory with one index operation for each of its arrays.

## What it does
By default the loader takes the samples of a batch from the dataset one by one and stacks them. With
this boost, each tensor or array is indexed once for all rows of the batch. This covers
`TensorDataset`; datasets of the program whose `__getitem__` only looks up rows or windows of
tensors, arrays and lists and converts them (`self.x[i]`, `torch.tensor(self.y[i])`, `self.data[i :
i + n]`,
`(self.x[i] - self.mean) / self.std`); and `Subset` (also from `random_split`), `ConcatDataset` and
`StackDataset` over these, in any nesting, with the default collate function. Such a `__getitem__`
is interpreted from its source, which is compared with the code that runs; none of its code is
called. The first batch of each epoch is fetched both ways and compared bit for bit, including data
types, strides and containers.

## Why it is faster
Fetching and stacking 64 rows of a table takes some 200 calls in Python and PyTorch, one after the
other, in the training process; with one operation per tensor it takes two or three. In a step of a
millisecond or two, those calls take most of the time.

## When it does nothing
With loader workers, `batch_size=None`, a collate function of the program's own, or additions to
PyTorch's default one; for a `__getitem__` that does anything else: that calls functions of the
program, draws random numbers, writes attributes, or decides by the index; for tensors that are
sparse, quantized, of a subclass or on the meta device, that require gradients, or that have four or
more dimensions and are not contiguous; for a batch sampler that yields anything other than lists of
numbers. If the first comparison finds a difference, the boost stays off.

## What it may change
Nothing: the same bytes in new memory, and no random number is drawn. For an invalid index it falls
back to PyTorch's own fetching, which raises the error.

## How it is undone
Running iterators get PyTorch's own fetcher back and continue with their next batch.

## References
- https://pytorch.org/docs/stable/data.html#torch.utils.data.TensorDataset
- https://pytorch.org/docs/stable/generated/torch.index_select.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_wait
from flatout_agent.speedups.samples import batch_reads, samples

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    conflicts=("loader-workers", "sample-cache"),
)
LEAST_WAIT = 0.01


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it applies to no loader of this job, or None if it may apply to at least one."""
    if not facts.loaders:
        return "no DataLoader was seen"
    if facts.wait_share is not None and facts.wait_share < LEAST_WAIT:
        return f"only {facts.wait_share:.1%} of the step is waiting for data"
    reasons = [loader.read_singly for loader in facts.loaders]
    return None if "" in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """It removes nearly all of the wait; it is tried before workers, which take cores."""
    if facts.wait_share is None:
        return 1.1
    return max(1.0, 1.02 * speedup_of_wait(facts, 20.0))


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Change the fetchers of this loader's running and future iterators."""
    reason = batch_reads.why_not_loader(target)
    if reason is not None:
        raise Declined(reason)
    rows = _Rows(job, target)
    undo_layer = job.wrap_batches(target, rows.layer)
    rows.take_over()

    def undo() -> None:
        undo_layer()
        rows.stop("taken back")

    return Applied(undo, rows.engagement)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The loader that asks the dataset for whole batches."""
    sizes = [loader.batch_size for loader in facts.loaders if loader.batch_size]
    return "\n".join(
        [
            "from torch.utils.data import BatchSampler, DataLoader, RandomSampler",
            "",
            "# lists of indices: TensorDataset, tensors and arrays take them as they are",
            "order = RandomSampler(dataset)  # SequentialSampler(dataset) without shuffle=True",
            f"batches = BatchSampler(order, batch_size={sizes[0] if sizes else 64},"
            " drop_last=False)",
            "loader = DataLoader(dataset, sampler=batches, batch_size=None)",
        ]
    )


class _Rows:
    """One loader's batches, fetched as rows: on or off, with counts."""

    def __init__(self, job: Job, loader: torch.utils.data.DataLoader[Any]) -> None:
        self._job = job
        self._loader = weakref.ref(loader)  # the layer lives in the job, by the loader
        self.off: str | None = None
        self.batches = 0

    def layer(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An iterator has just been made."""
        try:
            self.take_over()
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        return batches

    def take_over(self) -> None:
        """Change the fetcher of each iterator that has PyTorch's own."""
        import torch

        fetch = torch.utils.data._utils.fetch
        for iterator in self._iterators():
            plain = iterator._dataset_fetcher
            if self.off is not None or type(plain) is not fetch._MapDatasetFetcher:
                continue
            collated = plain.auto_collation and samples.collates_by_default(plain.collate_fn)
            if collated and "fetch" not in vars(plain):
                iterator._dataset_fetcher = Fetcher(plain, self)

    def stop(self, reason: str) -> None:
        self.off = self.off or reason
        for iterator in self._iterators():
            fetcher = iterator._dataset_fetcher
            if type(fetcher) is Fetcher and fetcher.rows is self:
                iterator._dataset_fetcher = fetcher.plain

    def engagement(self) -> tuple[bool, str]:
        if self.off is not None:
            return False, self.off
        if not self.batches:
            return False, "the loader returned no batch after the first of an epoch"
        return True, f"{self.batches} batches with one index operation for each tensor"

    def _iterators(self) -> list[Any]:
        loader = self._loader()
        return self._job.own_iterators(loader) if loader is not None else []


class Fetcher:
    """Replaces an iterator's `_MapDatasetFetcher`, which it holds."""

    def __init__(self, plain: Any, rows: _Rows) -> None:
        self.plain, self.rows = plain, rows
        self._compared = False

    def fetch(self, indices: Any) -> Any:
        rows = self.rows
        if rows.off is not None or type(indices) is not list or not indices:
            return self.plain.fetch(indices)
        if not self._compared:
            return self._compare(indices)
        try:
            batch = batch_reads.together(self.plain.dataset, indices)
        except Exception as error:
            failure = str(error) or type(error).__name__
        else:
            rows.batches += 1
            return batch
        batch = self.plain.fetch(indices)  # outside of `except`: the program sees its own error
        rows.stop(failure)
        return batch

    def _compare(self, indices: list[Any]) -> Any:
        """The first batch: PyTorch's own, after comparing it with ours."""
        self._compared = True
        expected = self.plain.fetch(indices)
        try:
            batch = batch_reads.together(self.plain.dataset, indices)
            if not samples.same(batch, expected):
                self.rows.stop("the first batch came out different")
        except Exception as error:
            self.rows.stop(str(error) or type(error).__name__)
        return expected

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self.plain, name)
