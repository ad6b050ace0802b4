"""Sampled stacks of this very process: lines, waiting, other threads, and nothing left behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile import stacks
from flatout_agent.watch.profile.stacks import NONE, Evaluation, StackSampler

LONGEST_S = 120.0
"""A busy machine takes longer for so many samples; a broken sampler never gets them."""
ENOUGH = 30


def until(enough: Callable[[], bool]) -> Iterator[None]:
    """Go on until that holds; fails where it never does."""
    began = time.monotonic()
    while not enough():
        yield
        assert time.monotonic() - began < LONGEST_S, "no samples"


def spinning(sampler: StackSampler) -> None:
    for _ in until(lambda: count(sampler) >= ENOUGH):
        sum(number * number for number in range(2000))


def sleeping(sampler: StackSampler) -> None:
    for _ in until(lambda: count(sampler) >= ENOUGH):
        time.sleep(0.02)


def count(sampler: StackSampler) -> int:
    watched = sampler._threads.get(threading.get_ident())
    return sum(tally.samples for tally in list(watched.stacks.values())) if watched else 0


def sampled(
    action: Callable[[StackSampler], None], evaluation: Callable[[], Evaluation] = lambda: NONE
) -> wire.HostSeen:
    sampler = StackSampler(evaluation)
    sampler.start()
    try:
        action(sampler)
    finally:
        sampler.stop()
    host = sampler.summary(steps=10, step_s=0.1)
    assert host is not None
    return host


def seconds(host: wire.HostSeen, function: str, thread: str = "") -> float:
    """Per step, of the stacks that this function is on."""
    return sum(
        stack.s
        for stack in host.stacks
        if stack.thread == thread
        and any(function in host.frames[number].function for number in stack.frames)
    )


def names(host: wire.HostSeen, stack: wire.StackSeen) -> set[str]:
    """Of its functions."""
    return {host.frames[number].function for number in stack.frames}


def total(host: wire.HostSeen) -> float:
    return sum(stack.s for stack in host.stacks if not stack.thread)


def test_the_function_that_runs_has_the_time() -> None:
    host = sampled(spinning)
    assert seconds(host, "spinning") > 0.5 * total(host)
    own = [frame for frame in host.frames if frame.function.endswith("spinning.<genexpr>")]
    assert own and all(frame.package == "" for frame in own)
    assert {frame.line for frame in own} == {spinning.__code__.co_firstlineno + 2}
    assert all(frame.column is not None for frame in own)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows no columns")
def test_a_loop_that_starts_over_is_its_whole_line() -> None:
    def counting(sampler: StackSampler) -> None:
        total, numbers = 0, range(20_000)
        for _ in until(lambda: count(sampler) >= ENOUGH):
            for number in numbers:
                total = total + number

    host = sampled(counting)
    longest = max((stack for stack in host.stacks if not stack.thread), key=lambda stack: stack.s)
    frame = host.frames[longest.frames[-1]]
    assert frame.line == counting.__code__.co_firstlineno + 4
    assert (frame.column, frame.end_column) == (0, stacks.LONGEST_LINE)


@pytest.mark.skipif(not stacks.CLOCKS, reason="no CPU clock for each thread on this system")
def test_waiting_is_told_from_running() -> None:
    waiting, running = sampled(sleeping), sampled(spinning)
    idle = {
        host: sum(stack.idle_s for stack in host.stacks) / total(host)
        for host in (waiting, running)
    }
    assert idle[waiting] > 0.5
    assert idle[running] < idle[waiting]  # a busy machine takes cores away as well
    assert waiting.idle_known


@pytest.mark.skipif(not stacks.CLOCKS, reason="no CPU clock for each thread on this system")
def test_another_thread_is_named_and_counted_by_its_cpu_time() -> None:
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            sum(range(500))

    poller = threading.Thread(target=poll, name="poller", daemon=True)
    idler = threading.Thread(target=ended.wait, name="idler", daemon=True)
    poller.start()
    idler.start()
    try:
        host = sampled(sleeping)
    finally:
        ended.set()
        poller.join()
        idler.join()
    assert seconds(host, "poll", "poller") > 0
    assert "idler" not in {stack.thread for stack in host.stacks}


def test_evaluation_is_left_out_up_to_its_last_call() -> None:
    evaluation = True, 0.0

    def both(sampler: StackSampler) -> None:
        nonlocal evaluation
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            validating()
        evaluation = True, time.perf_counter()
        while len(sampler._held) < 20 or sampler._held[0][0] <= evaluation[1]:
            reporting()
        evaluation = False, evaluation[1]
        spinning(sampler)

    host = sampled(both, lambda: evaluation)
    # A sample may fall between its last call and the note that it was evaluation.
    validated = [stack for stack in host.stacks if names(host, stack) & {"validating"}]
    assert sum(stack.samples for stack in validated) <= 1
    assert seconds(host, "reporting") > 0.0
    assert seconds(host, "spinning") > 0.0


def validating() -> int:
    return sum(range(5000))


def reporting() -> int:
    return sum(range(5000))


@pytest.fixture
def frozen() -> None:
    """All that other tests have imported would be looked at in each collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow
@pytest.mark.usefixtures("frozen")
def test_collections_are_counted_once() -> None:
    def collecting(sampler: StackSampler) -> None:
        litter = [[number] for number in range(100_000)]
        before = count(sampler)  # on a busy machine there may be enough of them already
        for _ in until(lambda: count(sampler) >= before + ENOUGH):
            gc.collect()
        assert litter

    began = time.perf_counter()
    host = sampled(collecting)
    assert host.gc_s > 0
    assert 10 * (total(host) + host.gc_s) <= time.perf_counter() - began


def test_nothing_is_left_behind() -> None:
    before = sys.getswitchinterval(), list(gc.callbacks), threading.active_count()
    sampler = StackSampler(lambda: NONE)
    sampler.start()
    assert sys.getswitchinterval() < before[0]
    sampler.stop()
    sampler.stop()
    assert (sys.getswitchinterval(), list(gc.callbacks), threading.active_count()) == before


def test_stacks_know_the_steps_in_which_they_were_seen() -> None:
    sampler = StackSampler(lambda: NONE)

    def working() -> None:
        before = count(sampler)
        for _ in until(lambda: count(sampler) >= before + 10):
            sum(number * number for number in range(2000))

    def once() -> None:
        working()

    sampler.start()
    try:
        for step in range(6):
            if step == 3:
                once()
            working()
            sampler.step_ends()
    finally:
        sampler.stop()
    host = sampler.summary(steps=6, step_s=0.1)
    assert host is not None
    assert steps_of(host, "working") == set(range(6))
    assert steps_of(host, "once") == {3}


def steps_of(host: wire.HostSeen, function: str) -> set[int]:
    """The steps in which this function was seen on the main thread's stack."""
    return {
        step
        for stack in host.stacks
        if not stack.thread
        and any(host.frames[number].function.endswith(function) for number in stack.frames)
        for step in stack.steps or ()
    }


def test_an_interval_that_the_program_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    sampler = StackSampler(lambda: NONE)
    sampler.start()
    sys.setswitchinterval(0.003)
    try:
        sampler.stop()
        assert sys.getswitchinterval() == pytest.approx(0.003)
    finally:
        sys.setswitchinterval(before)


def test_without_steps_there_is_nothing() -> None:
    sampler = StackSampler(lambda: NONE)
    sampler.start()
    sampler.stop()
    assert sampler.summary(0, 0.0) is None


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (__file__, ""),
        (threading.__file__, "threading"),
        (pytest.__file__, "pytest"),
        (stacks.__file__, "flatout_agent"),
        ("<eval_with_key>.12", "torch"),
        ("<string>", "python"),
        (str(Path(torch.__file__).parent / "nn" / "modules" / "linear.py"), "torch"),
    ],
)
def test_the_package_of_a_file(file: str, package: str) -> None:
    assert places.package(file) == package
