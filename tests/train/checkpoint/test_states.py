import collections
import enum
import functools
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from flatout_train.checkpoint.states import HostCopies
from flatout_train.errors import CheckpointError


def through_a_file(value):
    copies = HostCopies()
    copies.begin()
    staged = copies.copy(value, "thing")
    copies.started()
    copies.finish()
    file = io.BytesIO()
    torch.save(staged, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(
            torch.view_as_real(one) if one.is_complex() else one,
            torch.view_as_real(other) if other.is_complex() else other,
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
numbers = numbers.filter(lambda value: not isinstance(value, complex) or value == value)
words = st.text() | st.binary(min_size=1, max_size=300)
dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
tensors = st.builds(
    lambda shape, dtype: (
        torch.ones(shape).cumsum(0).to(dtype) if shape else torch.ones((), dtype=dtype)
    ),
    st.lists(st.integers(0, 4), max_size=3),
    dtypes,
)
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
nests = st.recursive(
    numbers | words | tensors | st.just(torch.float16) | st.just(torch.Size([2, 3])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict),
        st.sets(st.integers() | st.text(), max_size=4),
    ),
    max_leaves=12,
)


@given(nests)
def test_what_is_stored_is_loaded_again_the_same(value):
    assert same(through_a_file(value), value)


class Shape(enum.IntEnum):
    ROUND = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        functools.partial(print),
        Point(1, 2),
        Shape.ROUND,
        np.ones(3),
        np.float32(1),
        collections.deque([1]),
        collections.defaultdict(list),
        frozenset([1]),
        object(),
        torch.nn.Linear(1, 1),
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_read_safely_is_refused_with_its_place(value):
    with pytest.raises(CheckpointError) as caught:
        through_a_file({"groups": [0, {"inner": value}]})
    assert "thing['groups'][1]['inner'] is a" in str(caught.value)


def test_keys_are_looked_at_too():
    with pytest.raises(CheckpointError, match=r"a key in thing.*Shape"):
        through_a_file({Shape.ROUND: 1})


def test_numbers_of_numpy_that_python_holds_exactly_become_python_numbers():
    loaded = through_a_file([np.float64(0.1), np.int64(7), np.bool_(True)])
    assert loaded == [0.1, 7, True]
    assert [type(value) for value in loaded] == [float, int, bool]


def test_tied_weights_are_stored_once():
    weight = torch.randn(1000)
    copies = HostCopies()
    copies.begin()
    staged = copies.copy({"in": weight, "out": weight, "half": weight[:500]}, "model")
    assert staged["in"] is staged["out"]
    assert torch.equal(staged["half"], weight[:500])


def test_a_small_view_does_not_drag_its_whole_storage_along():
    file = io.BytesIO()
    torch.save(HostCopies().copy(torch.zeros(10**6)[:3], "view"), file)
    assert len(file.getvalue()) < 10**4


def test_memory_is_used_again_and_the_copy_is_apart():
    copies, weight = HostCopies(), torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
    copies.begin()
    first = copies.copy({"weight": weight}, "model")["weight"]
    weight.zero_()
    assert first.sum() == 48
    assert first.stride() == weight.stride()
    copies.begin()
    second = copies.copy({"weight": weight}, "model")["weight"]
    assert second.data_ptr() == first.data_ptr()
    assert second.sum() == 0
    copies.begin()
    assert copies.copy({"weight": torch.ones(5)}, "model")["weight"].shape == (5,)


def test_what_another_rank_writes_takes_no_memory():
    copies = HostCopies()
    copies.begin()
    copies.only_shards = True
    weight = torch.zeros(3)
    assert copies.copy({"weight": weight}, "model")["weight"] is weight
    copies.only_shards = False
    assert copies.copy({"weight": weight}, "own")["weight"] is not weight


def test_sparse_and_complex_views():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(through_a_file(sparse).to_dense(), torch.eye(3))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert through_a_file(conjugate).tolist() == [1 - 2j]


def test_registered_tensor_classes_pass():
    class Own(torch.Tensor):
        pass

    value = torch.ones(2).as_subclass(Own)
    with pytest.raises(CheckpointError, match="add_safe_globals"):
        HostCopies().copy(value, "thing")


def scheduled(kind, *arguments, **named):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3, 2))], lr=0.1)
    scheduler = kind(optimizer, *arguments, **named)
    for _ in range(5):
        optimizer.step()
        scheduler.step(*([1.0] if kind is lr_scheduler.ReduceLROnPlateau else []))
    return scheduler.state_dict()


def sequence(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


def optimized(kind):
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.1)

    def closure():
        parameter.grad = parameter.detach().clone()
        return parameter.square().sum()

    optimizer.step(closure)
    return optimizer.state_dict()


def scaled():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    return scaler.state_dict()


STATES = {
    "lambda": lambda: scheduled(lr_scheduler.LambdaLR, lambda step: float(np.cos(step))),
    "steps": lambda: scheduled(lr_scheduler.MultiStepLR, [2, 4]),  # it keeps a Counter
    "one cycle": lambda: scheduled(lr_scheduler.OneCycleLR, 0.1, total_steps=20),
    "plateau": lambda: scheduled(lr_scheduler.ReduceLROnPlateau, patience=1),
    "sequence": lambda: scheduled(sequence),
    **{
        kind: lambda kind=kind: optimized(kind)
        for kind in ("AdamW", "SGD", "RMSprop", "Adagrad", "Adafactor", "LBFGS")
    },
    "scaler": scaled,
}


@pytest.mark.parametrize("name", STATES)
def test_the_states_of_torchs_own_can_be_stored(name):
    state = STATES[name]()
    assert repr(through_a_file(state)) == repr(state)


def test_a_rate_that_numpy_has_computed_can_be_stored():
    state = scheduled(lr_scheduler.LambdaLR, lambda step: np.cos(step))
    assert through_a_file(state) == state


@pytest.mark.gpu
def test_on_cuda_the_copy_is_of_the_moment_though_the_next_update_follows_at_once():
    weight = torch.zeros(64 << 20, device="cuda")
    copies = HostCopies()
    copies.begin()
    staged = copies.copy({"weight": weight}, "model")["weight"]
    copies.started()
    weight.fill_(1)
    copies.finish()
    assert staged.is_pinned()
    assert int(staged.count_nonzero()) == 0


@pytest.mark.parametrize("size", [600, 5_000, 100_000])
def test_states_that_are_made_when_they_are_asked_for_do_not_take_each_others_place(size):
    """The memory of one is free once it is copied, and the next one lies where it lay."""
    host = HostCopies()
    for _ in range(2):
        host.begin()
        copies = [
            host.copy({"x": torch.full((size,), float(number))}, f"thing{number}")
            for number in range(6)
        ]
        host.started()
        host.finish()
        assert [copy["x"][0].item() for copy in copies] == [0, 1, 2, 3, 4, 5]
