"""clip-grad: every bit of torch's own clipping, and the pass that changes none left out."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_ as imported_by_name

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import clip_grad as boost
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts
from switched import switched, told

FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu")
WRITTEN = imported_by_name.__wrapped__  # type: ignore[attr-defined]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def body() -> Any:
    """What clip_grad_norm_ calls."""
    return imported_by_name.__closure__[0].cell_contents  # type: ignore[attr-defined]


def calls(applied: Applied) -> str:
    return told(applied)[1]


@pytest.fixture
def applied() -> Iterator[Applied]:
    with switched(boost) as applied:
        yield applied
    assert body() is WRITTEN


def written(*args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return WRITTEN(*args, **kwargs)


def parameters(
    shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32, size: float = 1.0
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(len(shapes))
    made = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in made:
        grad = size * torch.randn(parameter.shape, generator=generator)
        parameter.grad = grad.to(dtype)
    return made


def bits(tensor: torch.Tensor) -> list[int]:
    """NaN compares, too."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).tolist()  # type: ignore[no-any-return]


def assert_same(clip: Callable[..., Any], make: Callable[[], Any], *args: Any, **kw: Any) -> None:
    """The same norm, and the same gradients, to the last bit."""
    mine, theirs = make(), make()
    norm, usual = clip(mine, *args, **kw), written(theirs, *args, **kw)
    assert (norm.dtype, norm.shape, bits(norm)) == (usual.dtype, usual.shape, bits(usual))
    assert not norm.requires_grad
    for one, other in zip(_listed(mine), _listed(theirs), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert one.grad.dtype == other.grad.dtype
            assert bits(one.grad.to_dense()) == bits(other.grad.to_dense())


def _listed(made: Any) -> list[Any]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=12)


@quick
@given(
    shapes=SHAPES,
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([0.0, 1e-20, 1.0, 1e3, 1e30, math.inf, math.nan]),
    limit=st.sampled_from([0, 1, 0.5, 10.0, 1e9, math.inf]),
    without=st.sets(st.integers(0, 11)),
)
def test_every_bit_is_that_of_torch(
    applied: Applied,
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    size: float,
    limit: float,
    without: set[int],
) -> None:
    def make() -> list[nn.Parameter]:
        made = parameters(shapes, dtype, size)
        for place in without & set(range(len(made))):
            made[place].grad = None
        return made

    before = calls(applied)
    assert_same(imported_by_name, make, limit)
    grads = [item.grad for item in make() if item.grad is not None]
    assert (calls(applied) != before) == bool(grads)


def test_within_the_limit_nothing_is_written(applied: Applied) -> None:
    made = parameters([(3, 4), (5,)])
    versions = [item.grad._version for item in made if item.grad is not None]
    imported_by_name(made, 1e3)
    assert versions == [item.grad._version for item in made if item.grad is not None]
    assert calls(applied) == "left alone in 1 of 1 calls"
    imported_by_name(made, 0.1)
    assert calls(applied) == "left alone in 1 of 2 calls"
    total = torch.cat([item.grad.flatten() for item in made if item.grad is not None]).norm()
    assert float(total) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
@pytest.mark.parametrize(
    "shape",
    [tuple, iter, dict.fromkeys, lambda made: (item for item in made), lambda made: made[0]],
)
def test_parameters_in_every_form(applied: Applied, shape: Any, limit: float) -> None:
    mine, theirs = (parameters([(3, 4), (5,), ()]) for _ in range(2))
    assert bits(imported_by_name(shape(mine), limit)) == bits(written(shape(theirs), limit))
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    named = parameters([(3, 4)])
    found = torch.nn.utils.clip_grad_norm_(parameters=named, max_norm=limit, norm_type=2)
    assert found.isfinite()


def _mixed() -> list[nn.Parameter]:
    return [*parameters([(3,)]), *parameters([(4,)], torch.float64)]


def _in_a_graph() -> list[nn.Parameter]:
    made = nn.Parameter(torch.arange(3.0))
    made.square().sum().backward(create_graph=True)
    return [made]


def _own() -> list[nn.Parameter]:
    class Own(torch.Tensor):
        pass

    made = parameters([(3,)])
    made[0].grad = made[0].grad.as_subclass(Own)  # type: ignore[union-attr]
    return made


STAYS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]] = {
    "mixed": (_mixed, (0.5,), {}),
    "own class": (_own, (0.5,), {}),
    "the largest": (lambda: parameters([(3,), (4,)]), (0.5, math.inf), {}),
    "a word": (lambda: parameters([(3,), (4,)]), (0.5,), {"norm_type": "inf"}),
    "first norm": (lambda: parameters([(3,), (4,)]), (0.5,), {"norm_type": 1.0}),
    "one by one": (lambda: parameters([(3,), (4,)]), (0.5,), {"foreach": False}),
    "at once": (lambda: parameters([(3,), (4,)]), (0.5,), {"foreach": True}),
    "a tensor": (lambda: parameters([(3,), (4,)]), (torch.tensor(0.5),), {}),
    "complex": (lambda: parameters([(3,)], torch.complex64), (0.5,), {}),
    "nothing": (list, (0.5,), {}),
    "no gradients": (lambda: [nn.Parameter(torch.zeros(2))], (0.5,), {}),
    "in a graph": (_in_a_graph, (0.5,), {}),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
@pytest.mark.parametrize("name", STAYS)
def test_what_stays_as_it_is(applied: Applied, name: str) -> None:
    make, args, kwargs = STAYS[name]
    assert_same(imported_by_name, make, *args, **kwargs)
    assert calls(applied) == "no gradients on the CPU were clipped"


@pytest.mark.parametrize("size", [math.inf, math.nan])
def test_errors_and_warnings_are_those_of_torch(applied: Applied, size: float) -> None:
    made = parameters([(3,)], size=size)
    with pytest.raises(RuntimeError, match=r"order 2\.0 for gradients .* is non-finite"):
        imported_by_name(made, 1.0, error_if_nonfinite=True)
    assert bits(made[0].grad) == bits(parameters([(3,)], size=size)[0].grad)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="empty generator"):
        imported_by_name((item for item in ()), 1.0)
    with pytest.raises(TypeError):
        imported_by_name(made)  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(imported_by_name(parameters([(3,)]), 1.0, error_if_nonfinite=True)) > 0


def test_torch_clips_no_sparse_gradients(applied: Applied) -> None:
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()
    for clip in (imported_by_name, written):
        with pytest.raises(NotImplementedError, match="Sparse"):
            clip(table.parameters(), 1.0)


@pytest.mark.slow
def test_compilers_see_the_original(applied: Applied) -> None:
    made, other = parameters([(3, 4), (5,)]), parameters([(3, 4), (5,)])

    def clip() -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(made, 0.1)

    norm = torch.compile(clip, backend="eager", fullgraph=True)()
    assert calls(applied) == "no gradients on the CPU were clipped"
    assert torch.allclose(norm, written(other, 0.1))
    assert torch.allclose(made[0].grad, other[0].grad)  # type: ignore[arg-type]


def test_modes_see_every_operation_of_torch(applied: Applied) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode
    seen: list[str] = []

    class Watch(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        imported_by_name(parameters([(3,)]), 1e3)
    assert any("_foreach_mul_" in name for name in seen)
    assert calls(applied) == "no gradients on the CPU were clipped"


def test_the_function_is_the_programs_own(applied: Applied) -> None:
    """Whoever looks at it, copies or pickles it finds torch's."""
    assert torch.nn.utils.clip_grad_norm_ is imported_by_name
    assert imported_by_name.__wrapped__ is WRITTEN  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(imported_by_name)) is imported_by_name
    assert copy.deepcopy(imported_by_name) is imported_by_name
    torch.save(imported_by_name, io.BytesIO())


def test_declined_where_torch_clips_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.utils.clip_grad, "clip_grad_norm_", WRITTEN)
    boost._clipping.cache_clear()
    try:
        with pytest.raises(Declined, match="differently"):
            boost.apply(Job(), torch, {})
    finally:
        boost._clipping.cache_clear()


@pytest.mark.parametrize("limit", [0.1, 1e3])
def test_by_hand_clips(limit: float) -> None:
    model, other = nn.Linear(3, 4), nn.Linear(3, 4)
    for one in (model, other):
        for parameter in one.parameters():
            parameter.grad = torch.ones_like(parameter)
    exec(boost.by_hand(FACTS, {}), {"torch": torch, "model": model, "max_norm": limit})
    written(other.parameters(), limit)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad)  # type: ignore[arg-type]
