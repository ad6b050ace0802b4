"""All rules at healthy jobs, and at histories that no job has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.nouns.job_sample import PulseStep
from flatout.nouns.machine_sample import DiskSample, GpuSample, GpuUse, MachineSample
from flatout.watching import rules
from flatout.watching.rules import RankHistory, View
from watching.alerts.histories import (
    NOW,
    fires,
    job,
    random_job,
    rank,
    view,
)

THROTTLES = ("sw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap")


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_healthy_jobs_are_left_in_peace(seed: int) -> None:
    of, samples = random_job(seed)
    for module in rules.every():
        for seen in (view(None, samples), view(of, samples)):
            assert not fires(module, seen), module.RULE.code


def odd(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Not known, nothing, what no driver should say, and what is usual."""
    return st.one_of(st.none(), st.just(0), strategy)


numbers = odd(st.floats(-1e15, 1e15))
sizes = odd(st.integers(0, 2**42))
gpu_samples = st.builds(
    GpuSample,
    index=st.integers(0, 1),
    vendor=st.sampled_from(["nvidia", "amd", "apple"]),
    utilization=numbers,
    power_w=numbers,
    power_limit_w=numbers,
    power_limit_default_w=numbers,
    temperature_c=numbers,
    clock_mhz=numbers,
    clock_max_mhz=numbers,
    memory_used_bytes=sizes,
    memory_bytes=sizes,
    throttles=st.one_of(st.none(), st.sets(st.sampled_from(THROTTLES), max_size=2).map(tuple)),
    ecc_uncorrected=sizes,
    remap_pending=odd(st.booleans()),
    xids=st.lists(st.integers(0, 200), max_size=2).map(tuple),
    processes=st.one_of(
        st.none(),
        st.lists(
            st.builds(GpuUse, st.sampled_from([1000, 1001, 4242]), sizes, numbers, st.booleans()),
            max_size=3,
        ).map(tuple),
    ),
)
disk_samples = st.builds(
    DiskSample,
    st.sampled_from(["/work", "/dev/shm"]),
    st.integers(0, 2**42),
    st.integers(0, 2**42),
)
machine_samples = st.builds(
    MachineSample,
    time_s=st.floats(NOW - 900, NOW + 900),
    hostname=st.just("n"),
    gpus=st.lists(gpu_samples, max_size=2).map(tuple),
    cores=numbers,
    cpu_cores=numbers,
    cpu_steal=numbers,
    cpu_throttled=numbers,
    memory_bytes=sizes,
    memory_used_bytes=sizes,
    swap_in_bytes_per_s=numbers,
    disks=st.lists(disk_samples, max_size=2).map(tuple),
)
odd_steps = st.builds(
    PulseStep,
    step=st.integers(0, 2**40),
    time_s=st.floats(NOW - 900, NOW + 900),
    duration_s=st.floats(0, 1e6),
    wait_s=st.floats(0, 1e6),
    loss=st.one_of(st.none(), st.floats()),
    samples=sizes,
    flags=st.integers(0, 127),
    shapes=odd(st.integers(0, 3)),
    loss_scale=st.one_of(st.none(), st.floats(allow_nan=False)),
    own_s=st.one_of(st.none(), st.floats(0, 1e6)),
)


@st.composite
def odd_ranks(draw: st.DrawFn, number: int) -> RankHistory:
    """A rank with any steps; many of the same kind, as rules ask for many."""
    some = draw(st.lists(odd_steps, max_size=4))
    taken = [
        replace(step, step=step.step + again, time_s=step.time_s + again / 10)
        for again in range(draw(st.sampled_from([1, 1, 120])))
        for step in some
    ]
    made = rank(taken, number, cpu=draw(numbers), lasted_s=draw(st.sampled_from([3, 700])))
    odd_memory, every = draw(sizes), draw(st.integers(1, 9))
    made.trees = [
        replace(tree, memory_bytes=odd_memory if index % every else tree.memory_bytes)
        for index, tree in enumerate(made.trees)
    ]
    made.gpus = draw(st.sampled_from([(), (0,), (0, 1)]))
    made.first_step_scale, made.early_clock_mhz = draw(numbers), draw(numbers)
    made.ended, made.waits_for_input = draw(st.booleans()), draw(st.booleans())
    return made


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), code=st.one_of(st.none(), st.integers(-300, 300)))
def test_no_history_makes_a_rule_fail(data: st.DataObject, code: int | None) -> None:
    few = data.draw(st.lists(machine_samples, max_size=3))
    samples = few * data.draw(st.sampled_from([1, 30]))
    taken = [data.draw(odd_ranks(number)) for number in range(data.draw(st.integers(0, 2)))]
    own = job(
        *taken,
        began_s=data.draw(st.sampled_from([0.0, NOW - 10, NOW + 10])),
        ended_s=NOW if code else None,
        exit_code=code,
        largest_save_bytes=data.draw(sizes),
    )
    for module in rules.every():
        for seen in (view(own, samples), view(own, []), view(None, samples), View(NOW, "n")):
            for breach in module.check(seen):
                assert len(breach.title) <= 100, breach.title
                assert breach.evidence
