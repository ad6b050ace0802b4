"""Keep the samples of a dataset in memory, so that they are decoded in the first epoch only.

## What it does
Keeps a copy of each sample that the dataset gives, by its index. When an index is asked for again,
the copy goes to the collate function instead. Only datasets that give the same for the same index
are kept: in the first epoch, and forever after, some samples are asked for twice and compared bit
for bit, and the random generators and the dataset's attributes are watched around every reading.

## Why it is faster
Reading and decoding a file costs milliseconds, and without augmentation the second epoch does all
of it again for the same result. Nothing is gained in the first epoch: a program that sees each
sample once gets no faster, and that cannot be known beforehand.

## When it does nothing
With loader workers, each of which would need memory of its own; for an IterableDataset, a dataset
without a length, one that loads whole batches by itself (`__getitems__`), one of tensors in memory,
one that holds random generators or whose code names one; where little of the step is waiting; where
all samples would take more than a quarter of the memory that is free, that of the control group
included; for samples of types that it cannot copy or that are on an accelerator. The first random
number that a sample draws, the first difference between two readings, or attributes that change
with every reading switch it off for good.

## What it may change
No number for a dataset that is what it looks like. Some 16 samples in each epoch and one in 61 are
read once more than before. Attributes that the program sets on the dataset empty the cache; changes
that cannot be seen there (files that are rewritten, items deep inside a long list) are found only
by the next samples that are compared. Augmentation that leaves most samples as they are and draws
from a source that Python, NumPy and PyTorch do not know might be taken for none.

## How it is undone
The iterators that are under way read from the dataset again, and the samples are dropped.

## References
- https://pytorch.org/docs/stable/data.html#map-style-datasets
- https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flatout_agent import samples, worker_safety
from flatout_agent.boosts import Applied, Boost, Declined, Moment, Risk
from flatout_agent.reachable import state
from flatout_agent.spare_memory import spare_memory

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.LOADER, conflicts=("loader-workers",))
LEAST_WAIT = 0.05
SHARE = 0.25
"""Of the memory that is free; the model's activations and the program's other data come later."""
CHECKS = 16
"""Samples asked for twice in each epoch ..."""
CHECK_EVERY = 61
"""... and then one in so many; a prime, so that other samples come up in each epoch."""
PATIENCE = 2
"""A dataset may open its file when it is first read: its attributes may change so many times."""
DRAWS = "a sample draws random numbers"


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why no loader's samples can be kept; None: those of at least one may be."""
    if not facts.loaders:
        return "no DataLoader was seen"
    if facts.wait_share is not None and facts.wait_share <= LEAST_WAIT:
        return f"only {facts.wait_share:.1%} of the step is waiting for data"
    reasons = [_why_not(loader) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def promise(facts: JobFacts, params: Params) -> float:
    """Half of the wait: nothing is gained in the first epoch, and collating stays."""
    return 1.05 if facts.wait_share is None else 1 / (1 - facts.wait_share / 2)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Keep this loader's samples, in iterators under way and in those to come."""
    reason = _why_not_target(job.torch, target)
    if reason is not None:
        raise Declined(reason)
    cache = _Cache(job, target)
    undo_layer = job.wrap_batches(target, cache.layer)
    cache.take_over()

    def undo() -> None:
        undo_layer()
        cache.stop("taken back")

    return Applied(undo, cache.told)


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
            "loader = DataLoader(Kept(dataset), ..., num_workers=0)",
        ]
    )


def _why_not(loader: LoaderFacts) -> str | None:
    if loader.num_workers:
        return f"the loader has {loader.num_workers} workers, each with memory of its own"
    if loader.iterable:
        return "an IterableDataset: its samples have no index"
    if loader.dataset == "TensorDataset":
        return "the samples are in memory already"
    return None


def _why_not_target(torch: Any, loader: Any) -> str | None:
    data, dataset = torch.utils.data, loader.dataset
    if loader.num_workers:
        return f"the loader has {loader.num_workers} workers, each with memory of its own"
    if isinstance(dataset, data.IterableDataset):
        return "an IterableDataset: its samples have no index"
    try:
        len(dataset)
    except Exception as error:
        return f"the dataset has no length ({type(error).__name__})"
    sources = list(_sources(data, dataset))
    if all(type(source) is data.TensorDataset for source in sources):
        return "the samples are in memory already"
    if any(getattr(source, "__getitems__", None) for source in sources):
        return "the dataset loads whole batches: a sample may depend on the others of its batch"
    if worker_safety.random_generators(loader) or any(map(samples.names_generator, sources)):
        return "the dataset has a random generator of its own"
    return "how much memory is free cannot be told here" if spare_memory() is None else None


def _sources(data: Any, dataset: Any) -> Iterator[Any]:
    """The datasets that really load, inside of PyTorch's own that select and combine."""
    own = "__getitems__" in getattr(dataset, "__dict__", {})
    if type(dataset) is data.Subset and not own:
        yield from _sources(data, dataset.dataset)
    elif type(dataset) in (data.ConcatDataset, data.StackDataset) and not own:
        parts = dataset.datasets
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from _sources(data, part)
    else:
        yield dataset


def _load(dataset: Any, indices: list[int]) -> Any:
    """As PyTorch's own fetcher does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


class _Cache:
    """One loader's samples, and what is known of them."""

    def __init__(self, job: Job, loader: Any) -> None:
        self.torch, self._job = job.torch, job
        self._loader = weakref.ref(loader, lambda _: self._forget())
        self.off: str | None = None
        self.samples: dict[int, Any] = {}
        self.bytes = self.expected = self.peak = self.served = 0
        self._count = len(loader.dataset)
        self._room = 0
        self._first_checks = self._uncompared = self._hits = self._changes = 0
        self._stacked = False
        self._state: list[tuple[str, Any]] | None = None
        self._glance: samples.Glance | None = None
        _caches.add(self)

    # Iterators --------------------------------------------------------------------------------

    def layer(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An iterator has just been made."""
        try:
            self.take_over()
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        return batches

    def take_over(self) -> None:
        """Change the fetcher of each iterator that has PyTorch's own."""
        if self.off is not None:
            return
        self._first_checks, self._glance = min(CHECKS, self._count // CHECKS + 1), None
        self._look_at_memory()
        for iterator in self._iterators():
            plain = iterator._dataset_fetcher
            kind = self.torch.utils.data._utils.fetch._MapDatasetFetcher
            if type(plain) is kind and "fetch" not in vars(plain):
                iterator._dataset_fetcher = Fetcher(plain, self)

    def stop(self, reason: str) -> None:
        self.off = self.off or reason
        self._forget()
        for iterator in self._iterators():
            fetcher = iterator._dataset_fetcher
            if type(fetcher) is Fetcher and fetcher.cache is self:
                iterator._dataset_fetcher = fetcher.plain

    def told(self) -> tuple[bool, str]:
        if self.off is not None:
            return False, self.off
        if not self.served:
            return False, "no sample was asked for a second time"
        return True, f"{self.served} samples from memory ({self.peak / 1e6:.1f} MB)"

    def _iterators(self) -> Iterator[Any]:
        loader, single = self._loader(), self.torch.utils.data.dataloader
        if loader is not None:
            for iterator in self._job.iterators(loader):
                if type(iterator) is single._SingleProcessDataLoaderIter:
                    yield iterator

    # Samples ----------------------------------------------------------------------------------

    def take(self, dataset: Any, indices: list[int], stacked: bool) -> Any:
        """The samples, from memory where they are known; what the dataset raises goes on."""
        if stacked != self._stacked:  # the program has set another collate function
            self._forget()
            self._stacked = stacked
        due = self._due(indices)
        self._safely(self._look, dataset, bool(due))
        for index in due:
            if index in self.samples:
                self._safely(self._compare, dataset, index)
        known = {index: self.samples[index] for index in indices if index in self.samples}
        missing = [index for index in indices if index not in known]
        fresh = iter(self._read(dataset, missing) if missing else ())
        self.served += len(indices) - len(missing)
        return [self._given(known[i]) if i in known else next(fresh) for i in indices]

    def _given(self, sample: Any) -> Any:
        return sample if self._stacked else samples.copied(self.torch, sample, stacked=False)

    def _read(self, dataset: Any, indices: list[int]) -> Any:
        if self.off is not None:
            return _load(dataset, indices)
        before = samples.Randomness(self.torch)
        fresh = _load(dataset, indices)
        if before.moved():
            self.stop(DRAWS)
        else:
            self._safely(self._keep, dataset, indices, fresh)
        return fresh

    def _keep(self, dataset: Any, indices: list[int], fresh: Any) -> None:
        found = state(dataset)
        if found != self._state:
            self._changed(found)
            return
        for index, sample in zip(indices, fresh, strict=True):
            if index not in self.samples:
                copy = self.samples[index] = samples.copied(self.torch, sample, self._stacked)
                self.bytes += samples.size(copy)
        self.peak = max(self.peak, self.bytes)
        self.expected = max(self.bytes, self.bytes // len(self.samples) * self._count)
        self._look_at_memory(measure=False)
        self._uncompared += len(indices)
        due = self._uncompared >= min(self._count // CHECKS, len(self.samples))
        if due and self.off is None:
            self._uncompared = 0
            self._compare(dataset, indices[0], fresh[0])

    def _forget(self) -> None:
        self.samples, self.bytes, self.expected = {}, 0, 0
        self._glance = self._state = None

    def _safely(self, action: Callable[..., None], *args: Any) -> None:
        if self.off is not None:
            return
        try:
            action(*args)
        except samples.Uncopyable as reason:
            self.stop(str(reason))
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")

    # Whether they are still true --------------------------------------------------------------

    def _due(self, indices: list[int]) -> list[int]:
        """Which of the samples that are known are to be read once more."""
        due = []
        for index in indices:
            if index in self.samples:
                self._hits += 1
                if self._first_checks or self._hits % CHECK_EVERY == 0:
                    self._first_checks = max(0, self._first_checks - 1)
                    due.append(index)
        return due

    def _compare(self, dataset: Any, index: int, first: Any = None) -> None:
        """Read one sample again. Raises Uncopyable where that is not just the same."""
        torch, before = self.torch, samples.Randomness(self.torch)
        try:
            (again,) = _load(dataset, [index])
        finally:
            if drawn := before.moved():
                before.put_back()
        if drawn:
            raise samples.Uncopyable(DRAWS)
        if state(dataset) != self._state:
            raise samples.Uncopyable("the dataset changes as it is read")
        here = [place for place in samples.places(torch, first) if place]
        shared = set(here) & set(samples.places(torch, again))
        if shared and (not self._stacked or shared == set(here)):
            raise samples.Uncopyable("the samples are in memory already")
        if len(set(here)) < len(here) and not self._stacked:
            raise samples.Uncopyable("the parts of a sample share memory")
        if not samples.same(
            torch, samples.copied(torch, again, self._stacked), self.samples[index]
        ):
            raise samples.Uncopyable(f"sample {index} came out different when it was read again")

    def _look(self, dataset: Any, closely: bool) -> None:
        """Forget the samples when the program has changed the dataset."""
        if self._glance is not None and not closely and self._glance.untouched():
            return
        found = state(dataset)
        if self._state is not None and found != self._state:
            self._changed(found)
        self._state = found
        self._glance = samples.Glance(dataset)

    def _changed(self, found: list[tuple[str, Any]]) -> None:
        pairs = zip(found, self._state or [], strict=False)
        path = next((new[0] for new, old in pairs if new != old), "")
        self._forget()
        self._state = found
        self._changes += 1
        if self._changes > PATIENCE:
            raise samples.Uncopyable(f"the dataset changes again and again (dataset{path})")

    def _look_at_memory(self, measure: bool = True) -> None:
        """Stop where all samples would take more than may be taken."""
        if measure:
            spare, held = spare_memory() or 0, sum(cache.bytes for cache in _caches)
            others = sum(cache.expected for cache in _caches if cache is not self)
            self._room = int(SHARE * (spare + held)) - others
        if self.expected > self._room:
            self.stop(
                f"{self._count} samples would take {self.expected / 1e6:.0f} MB, "
                f"{max(0, self._room) / 1e6:.0f} MB may be taken"
            )


_caches: weakref.WeakSet[_Cache] = weakref.WeakSet()


class Fetcher:
    """In place of an iterator's `_MapDatasetFetcher`, which it holds."""

    def __init__(self, plain: Any, cache: _Cache) -> None:
        self.plain, self.cache = plain, cache
        collate = cache.torch.utils.data._utils.collate
        functions = collate.default_collate_fn_map.values()
        self._stacked = bool(plain.auto_collation) and (
            plain.collate_fn is collate.default_collate
            and all(function.__module__ == collate.__name__ for function in functions)
        )

    def fetch(self, indices: Any) -> Any:
        plain = self.plain
        wanted = indices if plain.auto_collation else [indices]
        if self.cache.off is not None or not wanted:
            return plain.fetch(indices)
        if type(wanted) is not list or not all(map(_is_number, wanted)):
            self.cache.stop("the sampler gives something else than numbers")
            return plain.fetch(indices)
        found = self.cache.take(plain.dataset, wanted, self._stacked)
        return plain.collate_fn(found if plain.auto_collation else found[0])

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self.plain, name)


def _is_number(index: Any) -> bool:
    kind = type(index)
    return kind is int or (kind.__module__ == "numpy" and kind.__name__ == "int64")
