"""Loaders of every style, one after the other, each printing `LOADER name figures...`.

Run alone and as ranks: the figures must be the same. Reading takes its time, so that it pays to
share it; by how much does not matter here.
"""

from __future__ import annotations

import collections
import itertools
import random
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flatout_agent.ranks.loading import plans

plans.MARGIN = plans.STILL = 0.0  # sharing pays, however fast this machine is
plans.CHECK_EVERY = 7

Point = collections.namedtuple("Point", ("x", "y"))


class Rows(Dataset):
    """A class of its own for each case: the ranks tell by its name how it was read."""

    def __init__(self, count=57):
        self.count = count

    def __len__(self):
        return self.count

    def x(self, index):
        return torch.randn(3, generator=torch.Generator().manual_seed(index))

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.x(index), index


def figures(batch):
    """Numbers that show each value of a batch and its place."""
    if isinstance(batch, torch.Tensor):
        flat = batch.double().reshape(-1)
        yield from (float(flat.sum()), float((flat * torch.arange(1, flat.numel() + 1)).sum()))
        yield from batch.shape
    elif isinstance(batch, dict):
        for key in batch:
            yield from figures(batch[key])
    elif isinstance(batch, (list, tuple)):
        yield len(type(batch).__name__)
        for item in batch:
            yield from figures(item)
    elif isinstance(batch, str):
        yield float(sum(place * ord(letter) for place, letter in enumerate(batch, 1)))
    else:
        yield float(batch)


def epochs(loader, count=3):
    for _ in range(count):
        for batch in loader:
            yield from figures(batch)


class Plain(Rows):
    pass


def plain():
    return epochs(DataLoader(Plain(), batch_size=8, shuffle=True))


class Odd(Rows):
    pass


def odd_batches_dropped():
    loader = DataLoader(Odd(33), batch_size=5, shuffle=True, drop_last=True)
    yield len(loader)
    yield from epochs(loader)


class Working(Rows):
    pass


def workers():
    return epochs(DataLoader(Working(), batch_size=8, shuffle=True, num_workers=2))


class Persistent(Rows):
    pass


def persistent_workers_and_breaks():
    loader = DataLoader(
        Persistent(120), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True
    )
    for most in (9, 4, 20):
        for batch in itertools.islice(loader, most):
            yield from figures(batch)


class Named(Rows):
    def __getitem__(self, index):
        time.sleep(0.001)
        x = self.x(index)
        return {
            "x": x,
            "name": f"row {index}",
            "at": Point(x[:1], float(index)),
            "big": x.new_ones(70000) * index,
        }


def dictionaries_with_strings():
    return epochs(DataLoader(Named(40), batch_size=5), 2)


class Ragged(Rows):
    """Of equal length at first."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((4 + (index % 7 if index > 45 else 0),), index)


def padded(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def ragged():
    return epochs(DataLoader(Ragged(90), batch_size=6, collate_fn=padded))


class RaggedWorking(Ragged):
    pass


def ragged_in_workers():
    loader = DataLoader(RaggedWorking(90), batch_size=6, collate_fn=padded, num_workers=2)
    return epochs(loader, 4)


class Boxes(Rows):
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.ones(2, 1 + index % 3) * index, {
            "boxes": torch.ones(index % 4, 4),
            "id": index,
        }


def transposed(rows):
    return tuple(zip(*rows, strict=True))


def lists_of_targets():
    return epochs(DataLoader(Boxes(), batch_size=8, shuffle=True, collate_fn=transposed), 2)


class Sorted(Ragged):
    def __getitem__(self, index):
        time.sleep(0.001)
        return index


def descending(rows):
    return torch.tensor(sorted(rows, reverse=True))


def sorted_rows():
    return epochs(DataLoader(Sorted(), batch_size=8, shuffle=True, collate_fn=descending))


class Mixed(Rows):
    pass


def mixed_up(rows):
    x, y = torch.utils.data.default_collate(rows)
    order = torch.randperm(len(y))
    return x + 0.1 * x[order], y, y[order]


def mixed_in_the_collate_function():
    return epochs(DataLoader(Mixed(), batch_size=8, collate_fn=mixed_up))


class Counting(Rows):
    def __init__(self, count):
        super().__init__(count)
        self.read = 0

    def __getitem__(self, index):
        self.read += 1
        return self.x(index) * self.read


def what_counts():
    return epochs(DataLoader(Counting(57), batch_size=8))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(40))


def stream():
    return epochs(DataLoader(Stream(), batch_size=8))


class AtOnce(Rows):
    def __getitems__(self, indices):
        time.sleep(0.001)
        return [(self.x(index), index) for index in indices]


def batches_at_once():
    return epochs(DataLoader(AtOnce(), batch_size=8, shuffle=True))


class Nested(Rows):
    pass


def nested_and_zipped():
    loader = DataLoader(Nested(64), batch_size=8, shuffle=True)
    for outer in loader:
        yield from figures(outer)
        for inner in itertools.islice(loader, 2):
            yield from figures(inner)
    for pair in zip(loader, loader, strict=True):
        yield from figures(pair)


class Single(Rows):
    pass


def next_of_iter_and_cycle():
    loader = DataLoader(Single(), batch_size=8, shuffle=True)
    for _ in range(9):
        yield from figures(next(iter(loader)))
    yield from itertools.chain(*map(figures, itertools.islice(itertools.cycle(loader), 20)))


class Batched(Rows):
    pass


class Unbatched(Rows):
    pass


def samplers_own_batches():
    batches = [list(range(at, at + 1 + at % 9)) for at in range(0, 48, 2)]
    yield from epochs(DataLoader(Batched(60), batch_sampler=batches), 2)
    yield from epochs(DataLoader(Unbatched(20), batch_size=None), 1)


class Bad(Rows):
    bad = 49
    """Among the rows of the last rank."""

    def __getitem__(self, index):
        time.sleep(0.001)
        if index == self.bad:
            raise ValueError(f"no row {index}")
        return super().__getitem__(index)


def skipping(loader):
    batches = iter(loader)
    while True:
        try:
            yield from figures(next(batches))
        except StopIteration:
            return
        except ValueError as error:
            yield from figures(str(error).splitlines()[-1])


def a_row_that_cannot_be_read():
    return skipping(DataLoader(Bad(80), batch_size=5))


class BadWorking(Bad):
    bad = 64


def a_row_that_no_worker_can_read():
    return skipping(DataLoader(BadWorking(80), batch_size=5, num_workers=2))


class Threaded(Rows):
    pass


def in_a_thread():
    loader = DataLoader(Threaded(120), batch_size=8)
    yield from itertools.chain(*map(figures, itertools.islice(loader, 9)))
    batches, given = iter(loader), []
    yield from figures(next(batches))
    thread = threading.Thread(target=lambda: given.extend(batches))
    thread.start()
    thread.join()
    yield from epochs([given, *loader], 1)


class Encoded(Rows):
    """Its rows come through a model, some of them twice."""

    def __init__(self, count):
        super().__init__(count)
        self.model = nn.Linear(3, 3)

    def __getitem__(self, index):
        time.sleep(0.001)
        with torch.no_grad():
            x = self.model(self.x(index).expand(4, 3))
            return self.model(x) if index % 3 else x


def models_in_the_dataset():
    return epochs(DataLoader(Encoded(57), batch_size=6, shuffle=True))


class Again(Rows):
    pass


def made_again_for_each_epoch():
    data = Again(17)
    for _ in range(6):
        yield from epochs(DataLoader(data, batch_size=6, shuffle=True), 1)


class Spawned(Rows):
    pass


def spawned_workers():
    """Only where it is named: each worker imports torch."""
    loader = DataLoader(
        Spawned(160), batch_size=8, shuffle=True, num_workers=1, multiprocessing_context="spawn"
    )
    return epochs(loader, 1)


def trained():
    """Last: the losses of a training whose data is shared."""

    class Trained(Rows):
        pass

    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Trained(90), batch_size=9, shuffle=True)
    for _ in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


# With random numbers of the rows: all ranks draw those of one process -----------------------------


class Noisy(Rows):
    """Torch's, NumPy's and Python's, and a generator of its own."""

    def __init__(self, count):
        super().__init__(count)
        self.dice = random.Random(3)

    def __getitem__(self, index):
        time.sleep(0.001)
        import numpy

        drawn = [random.random(), torch.rand(()).item(), numpy.random.rand(), self.dice.random()]
        drawn.append(numpy.random.default_rng().random())
        for _ in range(index % 3):
            torch.rand(1)
        return torch.tensor(drawn, dtype=torch.float64)


def noise(**settings):
    loader = DataLoader(Noisy(80), batch_size=8, shuffle=True, **settings)
    for _ in range(3):
        for batch in loader:
            assert len(batch.reshape(-1).unique()) == batch.numel(), batch
            yield from figures(batch)
    import numpy

    yield from (random.random(), torch.rand(()).item(), loader.dataset.dice.random())
    yield numpy.random.default_rng().random()


def noisy():
    return noise()


class NoisyRagged(Noisy):
    def __getitem__(self, index):
        return super().__getitem__(index)[: 2 if 40 <= index < 44 else 4]


def noisy_in_workers():
    yield from noise(num_workers=2)
    loader = DataLoader(NoisyRagged(80), batch_size=8, collate_fn=padded, num_workers=2)
    yield from epochs(loader, 5)


class LateNoisy(Noisy):
    """Draws none for the first rows."""

    def __getitem__(self, index):
        if index >= 60:
            return super().__getitem__(index)
        time.sleep(0.001)
        return torch.full((5,), float(index), dtype=torch.float64)


def noisy_after_a_while():
    yield from epochs(DataLoader(LateNoisy(80), batch_size=8), 1)
    yield from (random.random(), torch.rand(()).item())


EXACT = [
    plain, odd_batches_dropped, workers, persistent_workers_and_breaks, dictionaries_with_strings,
    ragged, ragged_in_workers, lists_of_targets, sorted_rows, mixed_in_the_collate_function,
    what_counts, stream, batches_at_once, nested_and_zipped, next_of_iter_and_cycle,
    samplers_own_batches, a_row_that_cannot_be_read, a_row_that_no_worker_can_read, in_a_thread,
    models_in_the_dataset, made_again_for_each_epoch, trained, noisy, noisy_in_workers,
    noisy_after_a_while,
]  # fmt: skip
NAMED = [spawned_workers]

if __name__ == "__main__":
    chosen = sys.argv[1:]
    for case in (*EXACT, *NAMED):
        if case.__name__ in chosen or not (chosen or case in NAMED):
            torch.manual_seed(0)
            random.seed(0)
            print("LOADER", case.__name__, *case(), flush=True)
