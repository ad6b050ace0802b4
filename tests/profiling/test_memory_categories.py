"""Memory over time by what holds it."""

from __future__ import annotations

import pytest

from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.profile import MemoryPoint, Profile
from flatout.profiling.memory_categories import by_category
from flatout_agent import wire


def profile(device: str, parameters: int | None = 100, optimizer: int | None = 200) -> Profile:
    seen = wire.LoopSeen(0.1, 0.1, 6, parameter_bytes=parameters, optimizer_bytes=optimizer)
    points = tuple(MemoryPoint(float(at), amount) for at, amount in enumerate((350, 900, 250)))
    anatomy = Anatomy(device, 10.0, (Part(Kind.MATMUL, 10.0),), 6)
    return Profile(("train.py",), anatomy, seen=seen, memory=points)


@pytest.mark.parametrize(("device", "passing"), [("cuda", [50, 600, 0]), ("cpu", [350, 900, 250])])
def test_what_lasts_is_taken_off_where_the_allocator_counts_it(
    device: str, passing: list[int]
) -> None:
    points = by_category(profile(device)).memory
    assert curve(points, "all") == [350, 900, 250]
    assert curve(points, "parameters") == [100, 100]
    assert curve(points, "optimizer") == [200, 200]
    assert curve(points, "activations and gradients") == passing


def test_an_optimizer_that_remembers_nothing_has_no_curve() -> None:
    assert curve(by_category(profile("cuda", optimizer=0)).memory, "optimizer") == []


def test_without_the_agents_word_there_is_one_curve() -> None:
    bare = profile("cuda", parameters=None)
    assert by_category(bare) == bare


def curve(points: tuple[MemoryPoint, ...], category: str) -> list[int]:
    return [point.bytes for point in points if point.category == category]
