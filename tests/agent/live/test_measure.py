"""Blocks: what counts as a step of one, and the time that a step takes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator

import pytest

from flatout_agent import wire
from flatout_agent.live import measure
from flatout_agent.live.measure import Block, Sizes
from flatout_agent.live.state import State, Tick
from live_program import LiveProgram


def run(waiting: Generator[None, Tick, Block], ticks: Iterable[Tick]) -> tuple[Block, int]:
    """The block, and how many ticks it took."""
    next(waiting)
    for count, tick in enumerate(ticks, 1):
        try:
            waiting.send(tick)
        except StopIteration as done:
            return done.value, count
    raise AssertionError("the block did not end")


def collect(
    units: int,
    ticks: Iterable[Tick],
    skip: int = 0,
    sizes: Sizes | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Block, int]:
    return run(measure.collect(units, skip, sizes or Sizes(), clock), ticks)


def steady(count: int, seconds: float = 0.1, size: int = 32, clean: bool = True) -> list[Tick]:
    return [Tick(seconds, size, clean)] * count


def learnt(ticks: Iterable[Tick]) -> Sizes:
    sizes = Sizes()
    for tick in ticks:
        sizes.add(tick)
    return sizes


@pytest.mark.parametrize(
    ("unit_s", "floor_s", "units"),
    [
        (0.01, 0.15, 15),
        (0.011, 0.15, 14),
        (0.1, 0.15, 4),
        (0.149, 0.15, 4),
        (0.15, 0.15, 2),
        (1.0, 0.15, 2),
        (60.0, 0.15, 1),
        (1e-5, 0.15, 400),
        (0.0, 0.15, 400),
        (0.1, 0.8, 8),
        (0.5, 2.0, 4),
    ],
)
def test_length(unit_s, floor_s, units):
    assert measure.length(unit_s, floor_s) == units


@pytest.mark.parametrize(
    ("ticks", "skip", "seen", "taken", "seconds", "wall_s"),
    [
        pytest.param(
            [Tick(s, 32, True) for s in (0.1, 0.2, 0.15, 0.15)], 0, [], 4, 0.15, 0.6, id="mean"
        ),
        pytest.param([*steady(3, 9.0), *steady(4)], 3, [], 7, 0.1, 27.4, id="some are skipped"),
        pytest.param(
            [*steady(1), *steady(2, 5.0, clean=False), *steady(3)], 0, [], 6, 0.1, 10.4,
            id="some are not clean",
        ),
        pytest.param(
            [*steady(2, size=64), *steady(1, 0.01, 7), *steady(2, size=64)], 0,
            steady(20, size=64), 5, 0.1, 0.41, id="a small last batch",
        ),
        pytest.param(steady(4, size=0), 0, steady(9, size=0), 4, 0.1, 0.4, id="no tensor given"),
    ],
)  # fmt: skip
def test_the_units_that_count(ticks, skip, seen, taken, seconds, wall_s):
    block, count = collect(4, ticks, skip, learnt(seen))
    assert (count, block.units, block.disturbed) == (taken, 4, False)
    assert (block.seconds, block.wall_s) == pytest.approx((seconds, wall_s))


def test_sizes_that_vary_are_made_even():
    pattern = [100, 200, 300, 400]
    sizes = learnt(Tick(0.001 * size, size, True) for size in pattern * 5)
    assert sizes.vary
    assert sizes.slope == pytest.approx(1.0)
    usual = 0.001 * sizes.usual
    long, _ = collect(4, [Tick(0.4, 400, True)] * 4, sizes=sizes)
    short, _ = collect(4, [Tick(0.1, 100, True)] * 4, sizes=sizes)
    assert long.seconds == pytest.approx(usual)
    assert short.seconds == pytest.approx(usual)
    assert long.wall_s == pytest.approx(1.6)


@pytest.mark.parametrize(
    "points",
    [[(0.1, size) for size in [10, 20, 30, 40] * 5], [(0.1, 100), (0.2, 200), (0.3, 300)]],
    ids=["time does not grow with size", "few points"],
)  # fmt: skip
def test_without_a_slope_time_is_left_as_it_is(points):
    sizes = learnt(Tick(seconds, size, True) for seconds, size in points)
    assert sizes.vary
    assert sizes.slope == pytest.approx(0.0)
    assert sizes.even(Tick(0.3, 10, True)) == pytest.approx(0.3)


def test_sizes_forget_what_says_nothing():
    sizes = learnt([Tick(0.1, 0, True), Tick(0.0, 5, True)])
    assert (sizes.usual, sizes.vary) == (0, False)
    assert sizes.fits(Tick(0.1, 123, True))
    sizes = learnt(steady(2 * Sizes.MOST_SEEN))
    assert sum(sizes.count.values()) == Sizes.MOST_SEEN


@pytest.mark.parametrize(
    ("late", "disturbed"), [([], False), ([0.19], False), ([0.25], False), ([0.5], True),
                            ([0.21] * 3, True)]
)  # fmt: skip
def test_a_few_very_late_steps_disturb_a_block(late, disturbed):
    ticks = [*steady(10 - len(late)), *(Tick(s, 32, True) for s in late)]
    block, _ = collect(10, ticks)
    assert block.disturbed is disturbed


def test_of_two_long_steps_one_with_an_evaluation_disturbs_the_block():
    block, _ = collect(2, [Tick(0.5, 32, True), Tick(2.8, 32, True)])
    assert block.disturbed


def test_of_a_program_that_saves_at_each_step_every_unit_counts():
    block, taken = collect(4, steady(1000, clean=False))
    assert taken == 3 * 4 + 8
    assert block.units == taken
    assert not block.disturbed


def test_the_clock_is_asked_twice_and_tells_the_time_of_all():
    asked: list[float] = []

    def clock() -> float:
        asked.append(10.0 + 2.0 * len(asked))
        return asked[-1]

    block, _ = collect(4, [*steady(2, 7.0), *steady(4)], skip=2, clock=clock)
    assert asked == [10.0, 12.0]
    assert block.seconds == pytest.approx(0.5), "2 s on the device for 4 units"
    assert not block.disturbed


class Device:
    """Runs behind a host that only queues work; a unit that is not clean waits for all of it."""

    HOST_S, UNIT_S = 0.002, 0.010

    def __init__(self, other: Callable[[int], bool], beside_s: float = 0.0) -> None:
        """other: whether the unit of this number has something beside training in it, which takes
        `beside_s`."""
        self.other, self.beside_s = other, beside_s
        self.now = self.done = 0.0
        self.asked = 0

    def ticks(self) -> Iterator[Tick]:
        for number in itertools.count():
            began = self.now
            self.now += self.HOST_S
            self.done = max(self.done, self.now) + self.UNIT_S
            if self.other(number):
                self.now = self.done = max(self.now, self.done) + self.beside_s
            yield Tick(self.now - began, 32, not self.other(number))

    def clock(self) -> float:
        self.asked += 1
        self.now = max(self.now, self.done)
        return self.now

    def block(self, units: int, most: int) -> Block:
        return collect(units, itertools.islice(self.ticks(), most), clock=self.clock)[0]


def test_what_waits_for_a_device_takes_no_time_from_the_others():
    device = Device(lambda number: number == 10)
    block = device.block(20, 31)
    assert block.seconds == pytest.approx(0.010, rel=0.03), "by the host's time it is 2 ms"
    assert (block.units, block.disturbed) == (20, False)
    assert device.asked == 3
    assert block.wall_s == pytest.approx(0.120 + 20 * 0.002, rel=0.1)


@pytest.mark.parametrize("epoch", [8, 10, 19, 21])
def test_on_a_device_epochs_may_be_shorter_than_a_block(epoch):
    device = Device(lambda number: number % epoch == 0, beside_s=1.0)
    block = device.block(20, 80)
    assert block.seconds == pytest.approx(0.010, rel=0.05)
    assert block.units >= 20
    assert not block.disturbed
    assert device.asked < 15


def test_on_a_device_an_epoch_ends_in_a_small_batch():
    sizes = learnt(steady(20, size=32))
    device = Device(lambda number: number % 12 == 0, beside_s=0.5)

    def ticks() -> Iterator[Tick]:
        for number, tick in enumerate(device.ticks()):
            yield dataclasses.replace(tick, size=7) if number % 12 == 11 else tick

    waiting = measure.collect(20, 0, sizes, device.clock)
    block, _ = run(waiting, itertools.islice(ticks(), 80))
    assert block.seconds == pytest.approx(0.010, rel=0.05)
    assert (block.units, block.disturbed) == (20, False)


def test_on_a_device_where_no_unit_is_clean_all_of_them_count():
    device = Device(lambda number: True, beside_s=0.030)
    block = device.block(20, 27)
    assert block.seconds == pytest.approx(0.042)
    assert (block.units, block.disturbed) == (20, False)
    assert device.asked < 10, "not at each unit"


def test_on_a_device_that_is_hardly_ever_left_alone_a_block_ends_and_is_disturbed():
    device = Device(lambda number: number % 3 == 0, beside_s=0.030)
    block = device.block(20, 60)
    assert block.seconds == pytest.approx(0.010 + 0.030 / 3, rel=0.2)
    assert (block.units, block.disturbed) == (20, True)
    assert device.asked < 10


def test_on_a_device_what_was_measured_is_used_where_the_rest_cannot_be():
    device = Device(lambda number: number == 5 or number > 25, beside_s=0.030)
    block = device.block(40, 200)
    assert block.units == 40, "too little was measured, so that all count"
    device = Device(lambda number: number in (6, 28) or number > 50, beside_s=0.030)
    block = device.block(40, 200)
    assert block.seconds == pytest.approx(0.010, rel=0.05)
    assert (block.units, block.disturbed) == (21, True)


def test_on_a_device_sizes_that_vary_are_made_even():
    sizes = learnt(Tick(0.001 * size, size, True) for size in [100, 200, 300, 400] * 5)
    times = iter([0.0, 4.0])
    block, _ = collect(4, [Tick(0.4, 400, True)] * 4, sizes=sizes, clock=lambda: next(times))
    assert block.seconds == pytest.approx(sizes.usual / 400)


@pytest.mark.parametrize(
    ("own", "other", "kept"), [(2, 0.0, True), (2, 1.0, False), (1, 0.0, False)]
)
def test_the_last_units_are_half_of_a_pair_where_every_rank_has_enough(
    own: int, other: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """other: whether another rank has too few of them, or disturbed ones."""
    program, state = LiveProgram(0.0), State(written_s=1.0)
    monkeypatch.setattr(program, "agree", lambda value, how: max(value, other))
    taken = measure.Measure(program, state, lambda seconds: None, 0)
    pairs: list[str] = []

    def pair(base: object, trial: object) -> Generator[None, Tick, float]:
        pairs.append("pair")
        return 0.0
        yield

    monkeypatch.setattr(taken, "pair", pair)
    first = taken.first_pair([], [wire.BoostOrder("gc-pause", {})], [1.0] * own)
    next(first, None)
    assert (pairs == []) is kept
