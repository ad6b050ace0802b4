"""Which samples make the next batch: every sample once, equal shares, exact positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import RandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import flatout
from flatout_train.errors import UsageError
from flatout_train.loader import sampling
from flatout_train.loader.sampling import IndexOrder, SamplerOrder, World

ALONE = World()
Batches = list[tuple[list[int], int, int]]


def batches(
    order: IndexOrder | SamplerOrder,
    epoch: int = 0,
    position: int = 0,
    world: World = ALONE,
) -> Batches:
    """(indices, seed, end) of all batches from `position` on."""
    requests = order.requests(epoch, position, world)
    return [(request.indices, request.seed, request.end) for request in requests]


orders = st.builds(
    lambda samples, batch, shuffle, seed, drop: IndexOrder(
        samples,
        batch,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop,
    ),
    st.integers(1, 120),
    st.integers(1, 12),
    st.booleans(),
    st.integers(-5, 2**70),
    st.booleans(),
)


@given(order=orders, epoch=st.integers(0, 5), size=st.integers(1, 5))
def test_every_rank_gets_its_share_and_every_sample_comes(
    order: IndexOrder, epoch: int, size: int
) -> None:
    ranks = [batches(order, epoch, world=World(rank, size)) for rank in range(size)]
    assert {len(rank) for rank in ranks} == {order.batches(World(0, size))}
    for together in zip(*ranks, strict=True):
        assert len({len(indices) for indices, _, _ in together}) == 1
        assert len({end for _, _, end in together}) == 1
    seeds = [seed for rank in ranks for _, seed, _ in rank]
    assert len(set(seeds)) == len(seeds)
    handed = sorted(index for rank in ranks for indices, _, _ in rank for index in indices)
    if order.drop_last:
        assert (
            len(handed)
            == len(set(handed))
            == order.samples // (size * order.batch_size) * (size * order.batch_size)
        )
    else:
        assert set(handed) == set(range(order.samples))
        assert len(handed) == order.samples + order.padding(World(0, size))


@given(order=orders, epoch=st.integers(0, 3), size=st.integers(1, 3), data=st.data())
def test_from_any_position_the_very_next_batches_come(
    order: IndexOrder, epoch: int, size: int, data: st.DataObject
) -> None:
    world = World(size - 1, size)
    everything = batches(order, epoch, world=world)
    done = data.draw(st.integers(0, len(everything)))
    position = everything[done - 1][2] if done else 0
    assert batches(order, epoch, position, world=world) == everything[done:]
    assert order.left(position, world) is (done < len(everything))


@given(order=orders, steps=st.integers(0, 4), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_another_number_of_ranks_goes_on_with_the_samples_that_are_left(
    order: IndexOrder, steps: int, sizes: tuple[int, int]
) -> None:
    before, after = sizes
    first = [batches(order, world=World(rank, before))[:steps] for rank in range(before)]
    position = first[0][-1][2] if first[0] else 0
    rest = [batches(order, 0, position, World(rank, after)) for rank in range(after)]
    handed = [index for rank in first + rest for indices, _, _ in rank for index in indices]
    if order.drop_last:
        assert len(handed) == len(set(handed))
    else:
        assert set(handed) == set(range(order.samples))


@pytest.mark.parametrize("samples", [24, 25, 29])
@pytest.mark.parametrize("size", [2, 3])
def test_shares_are_those_of_torchs_distributed_sampler(samples: int, size: int) -> None:
    order = IndexOrder(samples, 4)
    for rank in range(size):
        ours = itertools.chain.from_iterable(
            indices for indices, _, _ in batches(order, world=World(rank, size))
        )
        theirs = DistributedSampler(range(samples), size, rank, shuffle=False)
        assert list(ours) == list(theirs)


def test_the_world_is_that_of_torch_distributed() -> None:
    assert sampling.world() == World(0, 1)
    distributed.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    try:
        assert sampling.world() == World(1, 3)
        loader = flatout.loader(torch.arange(8), 2, workers=0)
        assert len(loader) == 2
        assert [batch.tolist() for batch in loader] == [[1, 4], [7]]
        assert loader.notes["distributed"] == "rank 1 of 3; 1 samples come twice per epoch"
    finally:
        distributed.destroy_process_group()


def test_the_order_changes_with_the_epoch_and_with_the_seed() -> None:
    order = IndexOrder(50, 50, shuffle=True)
    other = IndexOrder(50, 50, shuffle=True, seed=1)
    found = {tuple(batches(order, epoch)[0][0]) for epoch in range(3)} | {
        tuple(batches(other)[0][0])
    }
    assert len(found) == 4


def test_a_sampler_of_the_users_own_is_resumed_at_the_exact_index() -> None:
    weights = torch.arange(1, 41, dtype=torch.float64)
    makers = [
        lambda: RandomSampler(range(40)),
        lambda: RandomSampler(range(40), generator=torch.Generator().manual_seed(5)),
        lambda: WeightedRandomSampler(weights.tolist(), 30),
        lambda: list(range(39, -1, -1)),
    ]
    before = torch.get_rng_state()
    for make in makers:
        order = SamplerOrder(make(), 7)
        everything = [batches(order, epoch) for epoch in range(2)]
        again = SamplerOrder(make(), 7)
        assert batches(again, 1, everything[1][2][2]) == everything[1][3:]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_global_sampler_is_shared_out_and_a_distributed_one_left_alone() -> None:
    order = SamplerOrder(range(10), 2)
    ranks = [batches(order, world=World(rank, 2)) for rank in range(2)]
    assert [indices for indices, _, _ in ranks[0]] == [[0, 2], [4, 6], [8]]
    assert [indices for indices, _, _ in ranks[1]] == [[1, 3], [5, 7], [9]]
    own = SamplerOrder(DistributedSampler(range(10), 2, 1, shuffle=True), 2)
    world = World(1, 2)
    everything = batches(own, 3, world=world)
    assert [index for indices, _, _ in everything for index in indices] == list(own.sampler)
    assert own.samples == 5
    assert len(everything) == own.batches(world) == 3
    assert batches(own, 3, everything[1][2], world=world) == everything[2:]


def test_samplers_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="generator has no length"):
        SamplerOrder((index for index in range(3)), 1)

    class Short(RandomSampler):
        def __iter__(self):
            return iter([0, 1])

    with pytest.raises(UsageError, match="yielded 2 indices, but its length is 5"):
        batches(SamplerOrder(Short(range(5)), 1))


def test_a_sampler_is_drawn_once_for_each_pass() -> None:
    class Counting(list[int]):
        drawn = 0

        def __iter__(self) -> Iterator[int]:
            Counting.drawn += 1
            return super().__iter__()

    loader = flatout.loader(torch.arange(4), 2, sampler=Counting([3, 1, 0, 2]))
    for passes in (1, 2):
        assert [batch.tolist() for batch in loader] == [[3, 1], [0, 2]]
        assert Counting.drawn == passes
