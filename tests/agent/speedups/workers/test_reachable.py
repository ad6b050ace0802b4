from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from flatout_agent.speedups.workers.reachable import reachable, state


class Box:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def method(self) -> None: ...


def _paths(root: Any, wanted: Any) -> list[str]:
    return [path for path, value in reachable(root, "data") if value is wanted]


def test_paths_lead_through_attributes_containers_and_closures() -> None:
    wanted = object()
    held = {
        "list": [0, wanted],
        "dict": {"key": wanted},
        "partial": functools.partial(print, wanted),
        "closure": lambda: wanted,
        "method": Box(inner=wanted).method,
    }
    for name, value in held.items():
        assert len(_paths(Box(**{name: value}), wanted)) == 1, name
    assert _paths(Box(inner=[{"key": wanted}]), wanted) == ["data.inner[0]['key']"]


def test_a_long_list_and_a_cycle_come_to_an_end() -> None:
    box = Box(names=[str(n) for n in range(100_000)])
    box.itself = box  # type: ignore[attr-defined]
    assert len(list(reachable(box, "data"))) < 100


def test_loggers_and_attributes_made_on_demand_are_not_entered() -> None:
    class Surprising:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    wanted = logging.getLogger("flatout-test")
    wanted.secret = secret = object()  # type: ignore[attr-defined]
    assert _paths(Box(log=wanted, odd=Surprising()), secret) == []


def _add_noise(box: Any) -> None:
    box.tensor.add_(1)


def _draw_anew(box: Any) -> None:
    """Give the attribute a tensor with the identity and the version of the one before."""
    first = id(box.tensor)
    for _ in range(1000):
        del box.tensor
        box.tensor = torch.randn(2)
        if id(box.tensor) == first:
            return
    pytest.skip("no identity was used again")


CHANGES: dict[str, Callable[[Any], None]] = {
    "dates": lambda box: setattr(box, "dates", numpy.array(["2026-12-02"], "M8[D]")),
    "number": lambda box: setattr(box, "number", 2),
    "nested": lambda box: setattr(box.inner, "p", 0.9),
    "list": lambda box: box.items.append(1),
    "tensor in place": _add_noise,
    "tensor anew": _draw_anew,
    "tensor through NumPy": lambda box: box.tensor.numpy().__setitem__(0, 7),
    "array in place": lambda box: box.array.__setitem__(0, 7),
    "large array shuffled": lambda box: numpy.random.default_rng(0).shuffle(box.order),
}


@pytest.mark.parametrize("change", CHANGES)
def test_state_sees_changes_and_nothing_else(change: str) -> None:
    box = Box(number=1, inner=Box(p=0.5), items=[1], tensor=torch.ones(2), array=bytearray(9))
    box.order = numpy.arange(100_000)  # type: ignore[attr-defined]
    box.dates = numpy.array(["2026-12-01"], "M8[D]")  # type: ignore[attr-defined]
    before = state(box)
    assert state(box) == before
    CHANGES[change](box)
    assert state(box) != before
