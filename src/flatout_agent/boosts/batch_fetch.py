"""Fetch each batch of a TensorDataset with one index operation for each of its tensors.

## What it does
By default the loader takes the samples of a batch from the dataset one by one and stacks them. Here
each tensor is indexed once for all rows of the batch (`index_select`). This covers `TensorDataset`,
and `Subset` (also from `random_split`), `ConcatDataset` and `StackDataset` over it, in any nesting,
with the default collate function. The first batch of each epoch is fetched both ways and compared
bit for bit, including data types, strides and containers.

## Why it is faster
Fetching and stacking 64 rows of a table takes some 200 calls in Python and PyTorch, one after the
other, in the training process; with one operation per tensor it takes two or three. Where a step
takes a millisecond or two, those calls are most of it.

## When it does nothing
With loader workers, `batch_size=None`, a collate function of the program's own, or additions to
PyTorch's default one; for any other class of dataset, subclasses of these four included; for
tensors that are sparse, quantized, of a subclass or on the meta device, that require gradients, or
that have four or more dimensions and are not contiguous; for a batch sampler that yields anything
other than lists of numbers. If the first comparison finds a difference, the boost stays off.

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

import array
import bisect
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_wait

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.LOADER, conflicts=("loader-workers",))
WRAPPERS = ("Subset", "ConcatDataset", "StackDataset")
LEAST_WAIT = 0.01
ALWAYS_CONTIGUOUS = 3
"""Stacking keeps the order of strides from four dimensions on (channels_last)."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it applies to no loader of this job; None: it may to at least one."""
    if not facts.loaders:
        return "no DataLoader was seen"
    if facts.wait_share is not None and facts.wait_share < LEAST_WAIT:
        return f"only {facts.wait_share:.1%} of the step is waiting for data"
    reasons = [_why_not(loader) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """It removes nearly all of the wait; it is tried before workers, which take cores."""
    if facts.wait_share is None:
        return 1.1
    whole = any(
        loader.dataset == "TensorDataset" and not _why_not(loader) for loader in facts.loaders
    )
    factor = 50.0 if whole else 2.0  # what a Subset is a subset of is not known here
    return max(1.0, 1.02 * speedup_of_wait(facts, factor))


def apply(job: Job, target: torch.utils.data.DataLoader[Any], params: Params) -> Applied:
    """Change the fetchers of this loader's iterators, of those under way and of those to come."""
    reason = _why_not_target(target)
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
            "# the sampler's items are lists of indices: TensorDataset takes a list as it is",
            "order = RandomSampler(dataset)  # SequentialSampler(dataset) without shuffle=True",
            f"batches = BatchSampler(order, batch_size={sizes[0] if sizes else 64},"
            " drop_last=False)",
            "loader = DataLoader(dataset, sampler=batches, batch_size=None)",
        ]
    )


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.num_workers:
        return f"the loader has {loader.num_workers} workers, which fetch the batches"
    if loader.dataset != "TensorDataset" and loader.dataset not in WRAPPERS:
        return f"the samples come from {loader.dataset}, not from a TensorDataset"
    return None


def _why_not_target(loader: torch.utils.data.DataLoader[Any]) -> str | None:
    import torch

    collate = torch.utils.data._utils.collate
    if loader.num_workers:
        return f"the loader has {loader.num_workers} workers, which fetch the batches"
    if loader.batch_sampler is None:
        return "batch_size=None: the loader makes no batches"
    if loader.collate_fn is not collate.default_collate:
        return "the program has a collate function of its own"
    functions = collate.default_collate_fn_map.values()
    if any(function.__module__ != collate.__name__ for function in functions):
        return "the program has added to the default collate function"
    return _why_not_dataset(loader.dataset)


def _why_not_dataset(dataset: Any) -> str | None:
    import torch

    data = torch.utils.data
    for level in _levels(data, dataset):
        if "__getitems__" in getattr(level, "__dict__", {}):
            return "the dataset was given a __getitems__ of its own"
        if type(level) in (data.Subset, data.ConcatDataset, data.StackDataset):
            continue
        if type(level) is not data.TensorDataset:
            return f"the samples come from {type(level).__name__}, not from a TensorDataset"
        for tensor in level.tensors:
            reason = _unlike(tensor)
            if reason is not None:
                return reason
    return None


def _levels(data: Any, dataset: Any) -> Iterator[Any]:
    """The dataset and those that it is made of."""
    yield dataset
    inner: Any = ()
    if type(dataset) is data.Subset:
        inner = [dataset.dataset]
    elif type(dataset) is data.ConcatDataset:
        inner = dataset.datasets
    elif type(dataset) is data.StackDataset:
        parts = dataset.datasets
        inner = parts.values() if isinstance(parts, dict) else parts
    for part in inner:
        yield from _levels(data, part)


def _unlike(tensor: torch.Tensor) -> str | None:
    """Why rows of this tensor must be stacked one by one; None: `index_select` gives the same."""
    import torch

    if type(tensor) is not torch.Tensor:
        return f"the dataset holds {type(tensor).__name__}, not plain tensors"
    if tensor.requires_grad:
        return "a tensor of the dataset requires gradients"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return "a tensor of the dataset is sparse, quantized or without data"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor of the dataset is a view that is computed when it is read"
    if tensor.dim() > ALWAYS_CONTIGUOUS and not tensor.is_contiguous():
        return "a tensor of the dataset is not contiguous"
    return None


class _Unlike(Exception):  # noqa: N818 - leads back to PyTorch's own way
    """These samples cannot be fetched so."""


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
            default = torch.utils.data._utils.collate.default_collate
            if plain.auto_collation and plain.collate_fn is default and "fetch" not in vars(plain):
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
    """In place of an iterator's `_MapDatasetFetcher`, which it holds."""

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
            batch = together(self.plain.dataset, indices)
        except Exception as error:
            failure = str(error) or type(error).__name__
        else:
            rows.batches += 1
            return batch
        batch = self.plain.fetch(indices)  # outside of `except`: the program sees its own error
        rows.stop(failure)
        return batch

    def _compare(self, indices: list[Any]) -> Any:
        """The first batch: PyTorch's own, compared with ours."""
        self._compared = True
        expected = self.plain.fetch(indices)
        try:
            batch = together(self.plain.dataset, indices)
            if not same(batch, expected):
                self.rows.stop("the first batch came out different")
        except Exception as error:
            self.rows.stop(str(error) or type(error).__name__)
        return expected

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self.plain, name)


def together(dataset: Any, indices: list[Any]) -> Any:
    """The default collate's result for these samples. Raises where that cannot be known."""
    import torch

    data = torch.utils.data
    kind = type(dataset)
    numbers = _numbers(indices)
    if kind is data.TensorDataset:
        rows = torch.frombuffer(array.array("q", numbers), dtype=torch.int64)
        return [_select(tensor, rows) for tensor in dataset.tensors]
    if kind is data.Subset:
        chosen = dataset.indices
        return together(dataset.dataset, [chosen[number] for number in numbers])
    if kind is data.StackDataset:
        parts = dataset.datasets
        if isinstance(parts, dict):
            return {name: together(part, numbers) for name, part in parts.items()}
        return [together(part, numbers) for part in parts]
    if kind is data.ConcatDataset:
        return _from_several(dataset, numbers)
    raise _Unlike(f"the samples come from {kind.__name__}, not from a TensorDataset")


def _numbers(indices: list[Any]) -> list[int]:
    """Indices as `int`: samplers over arrays and tensors give numbers of other types."""
    if set(map(type, indices)) == {int}:
        return indices
    return [_number(index) for index in indices]


def _number(index: Any) -> int:
    import torch

    kind = type(index)
    tensor = kind is torch.Tensor and index.dim() == 0 and index.dtype is torch.int64
    if kind is int or tensor or (kind.__module__ == "numpy" and kind.__name__ == "int64"):
        return int(index)
    raise _Unlike(f"the sampler gives {kind.__name__}, not a number")


def _select(tensor: torch.Tensor, rows: Any) -> Any:
    reason = _unlike(tensor)  # the program may have put in another since
    if reason is not None:
        raise _Unlike(reason)
    on_device = rows if tensor.device.type == "cpu" else rows.to(tensor.device)
    return tensor.index_select(0, on_device)


def _from_several(dataset: Any, numbers: list[int]) -> Any:
    """Rows of a ConcatDataset: one fetch for each part, then back into the order asked for."""
    import torch

    if min(numbers) < 0:
        raise _Unlike("the sampler gives negative numbers")
    ends = dataset.cumulative_sizes
    places_by_part: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        places_by_part.setdefault(bisect.bisect_right(ends, number), []).append(place)
    parts = []
    for part, places in places_by_part.items():
        start = ends[part - 1] if part else 0
        chosen = [numbers[place] - start for place in places]
        parts.append(together(dataset.datasets[part], chosen))
    if len(parts) == 1:
        return parts[0]
    order = array.array("q", bytes(8 * len(numbers)))
    for row, place in enumerate(place for places in places_by_part.values() for place in places):
        order[place] = row
    return _joined(parts, torch.frombuffer(order, dtype=torch.int64))


def _joined(parts: list[Any], order: Any) -> Any:
    import torch

    first = parts[0]
    if isinstance(first, dict):
        if any(list(part) != list(first) for part in parts):
            raise _Unlike("the parts of the dataset differ in their names")
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if isinstance(first, list):
        groups = zip(*parts, strict=True)
        return [_joined(list(group), order) for group in groups]
    forms = {(part.dtype, part.shape[1:], part.device) for part in parts}
    if len(forms) > 1:
        raise _Unlike("the parts of the dataset differ in type, shape or device")
    return torch.cat(parts).index_select(0, order.to(first.device))


def same(first: Any, second: Any) -> bool:
    """The same containers, types, strides and bits."""
    import torch

    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    forms = [(t.dtype, t.device, t.shape, t.stride(), t.requires_grad) for t in (first, second)]
    if forms[0] != forms[1]:
        return False
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return bool(torch.equal(*bits))
