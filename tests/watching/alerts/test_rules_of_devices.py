"""Rules about machines and memory, each at its planted fault and at what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flatout.nouns.machine_sample import DiskSample, GpuSample, GpuUse
from flatout.watching.alerts import (
    disk001_no_room,
    fault001_gpu_fault,
    heat001_gpu_slowed_down,
    idle001_gpu_held_idle,
    leak001_memory_grows,
    share001_shared_with_others,
)
from flatout.watching.rules import JobHistory, RankHistory, View
from watching.alerts.histories import (
    GIB,
    HEALTHY,
    NOW,
    breaches,
    fires,
    job,
    machine,
    rank,
    steps,
    view,
)


def hot(second: int) -> GpuSample:
    if second < 800:
        return HEALTHY
    return replace(
        HEALTHY, clock_mhz=1400.0, throttles=("sw_thermal_slowdown",), temperature_c=90.0
    )


def test_heat() -> None:
    (breach,) = breaches(heat001_gpu_slowed_down, view(None, machine(gpu=hot)))
    assert breach.fires
    assert "1400 MHz instead of 1900" in breach.evidence
    assert breach.subject == "GPU 0"


@pytest.mark.parametrize(
    "gpu",
    [
        replace(HEALTHY, throttles=("sw_power_cap",), clock_mhz=1400.0),  # the usual limit
        replace(HEALTHY, throttles=("sw_thermal_slowdown",)),  # hot, and as fast as ever
        replace(HEALTHY, throttles=("gpu_idle",), utilization=0.0, clock_mhz=300.0),
        GpuSample(0, "amd"),
    ],
)
def test_no_heat(gpu: GpuSample) -> None:
    samples = machine(gpu=lambda second: HEALTHY if second < 800 else gpu)
    assert not fires(heat001_gpu_slowed_down, view(None, samples))


def test_a_power_brake_and_a_lowered_limit() -> None:
    braked = replace(HEALTHY, throttles=("hw_slowdown", "hw_power_brake_slowdown"))
    (breach,) = breaches(heat001_gpu_slowed_down, view(None, machine(gpu=lambda s: braked)))
    assert breach.hold_s == 5.0
    low = replace(HEALTHY, power_limit_w=400.0, clock_mhz=1200.0, throttles=("sw_power_cap",))
    (breach,) = breaches(heat001_gpu_slowed_down, view(None, machine(gpu=lambda s: low)))
    assert breach.cure.commands == ("sudo nvidia-smi -i 0 -pl 700",)
    assert breach.fires
    nearly = replace(low, clock_mhz=1740.0)
    (breach,) = breaches(heat001_gpu_slowed_down, view(None, machine(gpu=lambda s: nearly)))
    assert not breach.fires  # it would keep an alert, and begins none


def test_a_leak_of_host_memory() -> None:
    leaks = rank(steps(900), memory=lambda s: 2 * GIB + 6 * GIB * s / 900)
    (breach,) = breaches(leak001_memory_grows, view(job(leaks), machine()))
    assert breach.fires
    assert breach.subject == "host memory"
    assert "used up in" in breach.evidence


def test_a_leak_of_gpu_memory() -> None:
    samples = machine(
        gpu=lambda s: replace(HEALTHY, memory_used_bytes=int(20 * GIB + 10 * GIB * s / 900))
    )
    (breach,) = breaches(leak001_memory_grows, view(job(rank(steps(900), gpus=(0,))), samples))
    assert breach.fires
    assert breach.subject == "GPU 0"


def used(own: int | None, whole: float, other: int = 0) -> GpuSample:
    """A GPU on which the job has `own` bytes (process 1000), and others have `other`."""
    uses = (GpuUse(1000, own), GpuUse(4242, other))
    return replace(HEALTHY, memory_used_bytes=int(whole), processes=uses)


def test_what_a_neighbour_takes_of_the_gpu_is_no_leak_of_the_job() -> None:
    taken = job(rank(steps(900), gpus=(0,)))

    def leaks(gpu: Callable[[int], GpuSample]) -> bool:
        return fires(leak001_memory_grows, view(taken, machine(gpu=gpu)))

    def grown(second: int) -> int:
        return int(5 * GIB + 10 * GIB * second / 900)

    assert not leaks(lambda s: used(18 * GIB, 20 * GIB + grown(s), grown(s)))
    assert leaks(lambda s: used(grown(s), 40 * GIB, 20 * GIB))
    assert not leaks(lambda s: used(None, grown(s)))  # whose it is, is not told
    others = (GpuUse(7, GIB),)
    assert not leaks(lambda s: replace(HEALTHY, memory_used_bytes=grown(s), processes=others))
    assert not leaks(lambda s: replace(HEALTHY, vendor="apple", memory_used_bytes=grown(s)))


def test_each_gpu_of_a_rank_is_looked_at_alone() -> None:
    def both(second: int) -> tuple[GpuSample, ...]:
        grown = 5 * GIB + 10 * GIB * second // 900
        return used(8 * GIB, 9 * GIB), replace(used(grown, 40 * GIB), index=1)

    samples = [replace(s, gpus=both(second)) for second, s in enumerate(machine())]
    taken = job(rank(steps(900), gpus=(0, 1)))
    (breach,) = breaches(leak001_memory_grows, view(taken, samples))
    assert breach.subject == "GPU 1"


@pytest.mark.slow
def test_growth_that_comes_with_longer_samples_is_no_leak() -> None:
    def longer(step: int) -> int:
        """Sequences are made longer every 150 s."""
        return step // 1500

    def taken(shapes: Callable[[int], int], memory: Callable[[int], float]) -> RankHistory:
        own = [replace(step, shapes=1 + shapes(step.step)) for step in steps(900)]
        return rank(own, memory=memory)

    def stairs(second: int) -> float:
        return (2 + (second - 1) // 150) * GIB

    def slope(second: int) -> float:
        return 2 * GIB + 12 * GIB * second / 900

    assert not fires(leak001_memory_grows, view(job(taken(longer, stairs)), machine()))
    assert fires(leak001_memory_grows, view(job(taken(lambda step: 0, slope)), machine()))
    assert fires(leak001_memory_grows, view(job(taken(lambda step: step % 7, slope)), machine()))
    (breach,) = breaches(leak001_memory_grows, view(job(taken(longer, slope)), machine()))
    assert breach.fires
    assert "growth that came with new batch shapes is not counted" in breach.evidence


@pytest.mark.parametrize(
    "memory",
    [
        lambda s: 4 * GIB + 3 * GIB * (s % 60) / 60,  # a collector's sawtooth
        lambda s: 2 * GIB + 6 * GIB * min(1.0, s / 120),  # caches that have filled
        lambda s: 8 * GIB - 6 * GIB * s / 900,
        lambda s: 4 * GIB + 0.2 * GIB * s / 900,  # too little to matter
    ],
)
def test_no_leak(memory: object) -> None:
    grows = rank(steps(900), memory=memory)  # type: ignore[arg-type]
    assert not fires(leak001_memory_grows, view(job(grows), machine()))


def test_a_neighbour_on_the_gpu() -> None:
    uses = (GpuUse(1000, 20 * GIB, 0.9), GpuUse(4242, 2 * GIB, 0.3))
    samples = machine(60, gpu=lambda second: replace(HEALTHY, processes=uses))
    (breach,) = breaches(
        share001_shared_with_others, view(job(rank(steps(60), gpus=(0,))), samples)
    )
    assert breach.title == "process 4242 uses GPU 0 as well"
    assert breach.hold_s == 60.0
    alone = machine(60, gpu=lambda second: replace(HEALTHY, processes=uses[:1]))
    assert not fires(share001_shared_with_others, view(job(rank(steps(60), gpus=(0,))), alone))


@pytest.mark.parametrize(
    ("name", "much", "little"),
    [
        ("cpu_steal", 0.2, 0.02),
        ("cpu_throttled", 0.5, 0.05),
        ("swap_in_bytes_per_s", 5e7, 1e5),
    ],
)
def test_what_others_take_of_the_machine(name: str, much: float, little: float) -> None:
    trains = job(rank(steps(60)))

    def seen(value: float, of: JobHistory | None, *jobs: JobHistory) -> bool:
        looks = View(NOW, "node", machine(60, **{name: value}), of, jobs)
        return fires(share001_shared_with_others, looks)

    assert seen(much, None, trains, trains)
    assert not seen(much, trains, trains, trains)  # it is told once, for the machine
    assert not seen(little, None, trains)
    assert not seen(much, None)
    assert not seen(much, None, replace(trains, ended_s=NOW - 5))


def with_disks(*disks: DiskSample) -> View:
    return view(job(rank(steps(60))), machine(60, disks=disks))


def test_no_room() -> None:
    assert fires(disk001_no_room, with_disks(DiskSample("/work", 10**12, 10**9)))
    assert fires(disk001_no_room, with_disks(DiskSample("/dev/shm", 8 * GIB, GIB // 2)))
    large = view(
        job(rank(steps(60)), largest_save_bytes=20 * GIB),
        machine(60, disks=(DiskSample("/work", 10**12, 30 * GIB),)),
    )
    assert fires(disk001_no_room, large)


def test_room() -> None:
    assert not fires(disk001_no_room, with_disks(DiskSample("/work", 10**12, 10**11)))
    assert not fires(disk001_no_room, with_disks(DiskSample("/other", 10**12, 10**6)))
    assert not fires(disk001_no_room, with_disks(DiskSample("/work", 4 * GIB, 3 * GIB)))
    assert not fires(disk001_no_room, with_disks(DiskSample("/dev/shm", 8 * GIB, 4 * GIB)))


def test_faults_of_the_hardware() -> None:
    bad = replace(HEALTHY, xids=(31, 79), remap_pending=True, ecc_uncorrected=3)
    samples = machine(
        60, gpu=lambda second: bad if second > 30 else replace(HEALTHY, ecc_uncorrected=1)
    )
    titles = [breach.title for breach in breaches(fault001_gpu_fault, view(None, samples))]
    assert titles[0] == "GPU 0 reports Xid 79"
    assert len(titles) == 3


def test_no_fault() -> None:
    old = replace(HEALTHY, xids=(31, 13), ecc_uncorrected=2, remap_pending=False)
    assert not fires(fault001_gpu_fault, view(None, machine(60, gpu=lambda second: old)))


def idle(seconds: float, busy: float) -> View:
    gpu = replace(HEALTHY, utilization=busy, processes=(GpuUse(1000, 20 * GIB),))
    taken = rank(steps(60, until_s=NOW - seconds), gpus=(0,))
    return view(job(taken), machine(gpu=lambda second: gpu))


def test_a_gpu_that_is_held_idle() -> None:
    (breach,) = breaches(idle001_gpu_held_idle, idle(1000, 0.0))
    assert breach.fires
    assert breach.cure.commands == ("kill 7",)
    assert not fires(idle001_gpu_held_idle, idle(10, 0.0))
    assert not fires(idle001_gpu_held_idle, idle(1000, 0.5))


@pytest.mark.parametrize(
    ("alive", "size", "expected"),
    [(False, 2 * GIB, True), (True, 2 * GIB, False), (None, 2 * GIB, False), (False, 10**6, False)],
)
def test_memory_of_a_dead_process(alive: bool | None, size: int, expected: bool) -> None:
    gpu = replace(HEALTHY, processes=(GpuUse(4242, size, alive=alive),))
    found = breaches(idle001_gpu_held_idle, view(None, machine(60, gpu=lambda s: gpu)))
    assert [breach.title for breach in found] == ["a dead process holds memory of GPU 0"] * expected
    assert all(breach.hold_s == 60.0 and "process 4242" in breach.subject for breach in found)
    trains = job(rank(steps(60), gpus=(0,)))
    shared = view(trains, machine(60, gpu=lambda s: gpu))
    assert fires(share001_shared_with_others, shared) == (alive is not False)
