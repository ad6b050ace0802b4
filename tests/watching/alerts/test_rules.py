"""Each rule at its planted fault, and at what only looks like it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.nouns.machine_sample import DiskSample, GpuSample, GpuUse, MachineSample
from flatout.watching import rules
from flatout.watching.alerts import (
    disk001_no_room,
    end001_job_failed,
    fault001_gpu_fault,
    hang001_job_hangs,
    heat001_gpu_slowed_down,
    idle001_gpu_held_idle,
    leak001_memory_grows,
    nan001_loss_not_finite,
    rank001_rank_holds_others_up,
    share001_shared_with_others,
    slow001_slower_than_before,
    wait001_waits_for_data,
)
from flatout.watching.rules import JobHistory, RankHistory, View
from flatout_agent.wire import pulse
from watching.alerts.histories import (
    GIB,
    NOW,
    breaches,
    fires,
    job,
    machine,
    random_job,
    rank,
    steps,
    view,
)

HEALTHY = GpuSample(
    0,
    "nvidia",
    utilization=0.95,
    memory_used_bytes=20 * GIB,
    memory_bytes=80 * GIB,
    power_w=600.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    clock_mhz=1900.0,
    clock_max_mhz=1980.0,
    throttles=(),
    temperature_c=60.0,
)


# HEAT001 ------------------------------------------------------------------------------------------


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


# HANG001 ------------------------------------------------------------------------------------------


def hung(silent_s: float, cpu: float = 0.0, **more: object) -> RankHistory:
    return rank(steps(600, until_s=NOW - silent_s), cpu=cpu, **more)  # type: ignore[arg-type]


def test_a_hang_of_idle_processes() -> None:
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90)), machine()))
    assert breach.title == "the job hangs after step 6000"
    assert "no step for 90 s" in breach.evidence
    assert "processes do nothing" in breach.evidence


def test_a_hang_that_spins_on_the_gpu() -> None:
    spinning = replace(HEALTHY, utilization=1.0, power_w=120.0)
    samples = machine(gpu=lambda second: spinning)
    assert fires(hang001_job_hangs, view(job(hung(90, cpu=1.0, gpus=(0,))), samples))
    working = machine(gpu=lambda second: HEALTHY)
    assert not fires(hang001_job_hangs, view(job(hung(90, cpu=1.0, gpus=(0,))), working))


def test_the_rank_that_is_least_far_is_named() -> None:
    behind = rank(steps(590, until_s=NOW - 90), number=1, cpu=0.0)
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90), behind), machine()))
    assert "rank 1 is least far" in breach.evidence


def test_one_rank_that_takes_no_step_while_the_others_go_on() -> None:
    behind = rank(steps(500, until_s=NOW - 100), number=1, cpu=1.0)
    ahead = rank(steps(600, until_s=NOW), cpu=1.0)
    (breach,) = breaches(hang001_job_hangs, view(job(ahead, behind), machine()))
    assert "rank 1 is least far; the others are 1000 steps ahead" in breach.evidence
    late = rank(steps(590, until_s=NOW - 10), number=1, cpu=1.0)
    assert not fires(hang001_job_hangs, view(job(ahead, late), machine()))


def test_a_program_that_waits_for_its_user_does_not_hang() -> None:
    debugged = hung(600)
    debugged.waits_for_input = True
    assert not fires(hang001_job_hangs, view(job(debugged), machine()))


def test_a_long_silence_of_busy_processes() -> None:
    assert not fires(hang001_job_hangs, view(job(hung(500, cpu=1.0)), machine()))
    assert fires(hang001_job_hangs, view(job(hung(700, cpu=1.0)), machine()))


def test_no_hang() -> None:
    assert not fires(hang001_job_hangs, view(job(hung(30)), machine()))  # a short stall
    assert not fires(hang001_job_hangs, view(job(hung(90, cpu=1.0)), machine()))  # an evaluation
    evaluates = steps(
        900,
        until_s=NOW - 90,
        flags=lambda step: 1 | (pulse.EVALUATED if step % 1000 == 0 else 0),
        duration=lambda step: 80.0 if step % 1000 == 0 else 0.1,
    )
    assert not fires(hang001_job_hangs, view(job(rank(evaluates, cpu=0.0)), machine()))
    tuned = steps(600, until_s=NOW - 90, flags=lambda step: pulse.TUNING)
    assert not fires(hang001_job_hangs, view(job(rank(tuned, cpu=0.0)), machine()))
    assert not fires(hang001_job_hangs, view(job(hung(90), ended_s=NOW - 80), machine()))


def test_a_job_that_never_takes_a_step() -> None:
    assert fires(hang001_job_hangs, view(job(rank([], cpu=0.0)), machine()))
    assert not fires(hang001_job_hangs, view(job(rank([], cpu=1.0)), machine()))
    assert not fires(hang001_job_hangs, view(job(rank([], cpu=0.0), began_s=NOW - 300), machine()))


def test_a_machine_that_slept_has_hung_no_job() -> None:
    asleep = [sample for sample in machine() if not NOW - 800 < sample.time_s < NOW - 20]
    assert not fires(hang001_job_hangs, view(job(hung(800, cpu=1.0)), asleep))
    assert not fires(hang001_job_hangs, view(job(hung(800, cpu=0.0)), asleep))


# NAN001 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_a_loss_that_is_lost(value: float, word: str) -> None:
    lost = steps(60, loss=lambda step: value if step >= 590 else 2.0)
    (breach,) = breaches(nan001_loss_not_finite, view(job(rank(lost))))
    assert breach.title == f"the loss is {word} since step 590"
    assert "2 at step 589" in breach.evidence
    assert breach.since_s == next(step.time_s for step in lost if step.step == 590)


def test_since_when_a_loss_is_lost_is_not_claimed_where_it_was_not_seen() -> None:
    lost = steps(60, loss=lambda _: math.nan, first=100)
    (breach,) = breaches(nan001_loss_not_finite, view(job(rank(lost))))
    assert breach.title == "the loss is NaN since step 100 or longer"


def test_one_loss_is_not_enough_and_losses_that_are_not_read_are_none() -> None:
    once = steps(60, loss=lambda step: math.nan if step == 600 else 2.0)
    assert not fires(nan001_loss_not_finite, view(job(rank(once))))
    seldom = steps(60, loss=lambda step: 2.0 if step % 10 == 0 else None)
    assert not fires(nan001_loss_not_finite, view(job(rank(seldom))))


def test_a_scaler() -> None:
    def skipped(every: int) -> View:
        flags = lambda step: 1 | (pulse.SKIPPED if step % every == 0 else 0)  # noqa: E731
        return view(job(rank(steps(60, flags=flags, loss_scale=65536.0))))

    assert fires(nan001_loss_not_finite, skipped(3))
    assert not fires(nan001_loss_not_finite, skipped(100))  # as a scaler works
    fallen = rank(steps(60, loss_scale=128.0))
    fallen.first_step_scale = 65536.0
    assert fires(nan001_loss_not_finite, view(job(fallen)))


# LEAK001 ------------------------------------------------------------------------------------------


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


def test_what_a_neighbour_takes_of_the_gpu_is_no_leak_of_the_job() -> None:
    samples = machine(
        gpu=lambda s: replace(HEALTHY, memory_used_bytes=int(20 * GIB + 10 * GIB * s / 900))
    )
    steady = rank(steps(900), gpus=(0,))
    steady.trees = [replace(tree, gpu_memory_bytes=18 * GIB) for tree in steady.trees]
    assert not fires(leak001_memory_grows, view(job(steady), samples))
    grows = rank(steps(900), gpus=(0,))
    grows.trees = [
        replace(tree, gpu_memory_bytes=int(5 * GIB + GIB * number / 90))
        for number, tree in enumerate(grows.trees)
    ]
    assert fires(leak001_memory_grows, view(job(grows), machine(gpu=lambda s: HEALTHY)))


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


# WAIT001 ------------------------------------------------------------------------------------------


def test_starvation_names_the_boost() -> None:
    starved = job(rank(steps(120, wait=0.4)), wait_boost="loader-workers")
    (breach,) = breaches(wait001_waits_for_data, view(starved))
    assert breach.fires
    assert breach.boost == "loader-workers"
    assert breach.title == "the job waits for its data 40% of the time"


def test_no_starvation() -> None:
    assert not fires(wait001_waits_for_data, view(job(rank(steps(120, wait=0.05)))))
    early = job(rank(steps(120, wait=0.4)), began_s=NOW - 120)  # the first epoch fills caches
    assert not fires(wait001_waits_for_data, view(early))
    (breach,) = breaches(wait001_waits_for_data, view(job(rank(steps(120, wait=0.12)))))
    assert not breach.fires  # it would keep an alert, and begins none


# RANK001 ------------------------------------------------------------------------------------------


def ranks(waits: tuple[float, ...]) -> JobHistory:
    taken = [rank(steps(60, wait=wait), number) for number, wait in enumerate(waits)]
    return job(*taken)


def test_a_straggler() -> None:
    (breach,) = breaches(rank001_rank_holds_others_up, view(ranks((0.02, 0.02, 0.3, 0.02))))
    assert breach.fires
    assert breach.subject == "rank 2"


def test_a_rank_that_computes_longer_is_a_straggler_too() -> None:
    taken = [rank(steps(60, own_s=own), number) for number, own in enumerate((0.04, 0.04, 0.07))]
    (breach,) = breaches(rank001_rank_holds_others_up, view(job(*taken)))
    assert breach.fires
    assert breach.subject == "rank 2"
    assert "it computes longer" in breach.evidence
    taken = [rank(steps(60, own_s=own), number) for number, own in enumerate((0.04, 0.04, 0.043))]
    assert not fires(rank001_rank_holds_others_up, view(job(*taken)))


def test_ranks_that_are_slow_in_turn_are_no_straggler() -> None:
    dice = random.Random(1)
    taken = []
    for number in range(4):
        own = [replace(step, own_s=0.04 * dice.lognormvariate(0, 0.3)) for step in steps(60)]
        taken.append(rank(own, number))
    assert not fires(rank001_rank_holds_others_up, view(job(*taken)))


def test_no_straggler() -> None:
    assert not fires(rank001_rank_holds_others_up, view(ranks((0.3, 0.3))))
    assert not fires(rank001_rank_holds_others_up, view(ranks((0.3,))))
    assert not fires(rank001_rank_holds_others_up, view(ranks((0.02, 0.04))))


# SLOW001 ------------------------------------------------------------------------------------------


def slowed(ratio: float, wait: float = 0.0) -> RankHistory:
    early = steps(30, 0.1, until_s=NOW - 400)
    late = steps(360, 0.1 * ratio, wait, first=301)
    return rank([*early, *late])


def test_slower_and_why() -> None:
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5)), machine()))
    assert breach.fires
    assert breach.title == "a step takes 1.50 times as long as at the begin"
    assert "no cause was seen" in breach.evidence
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5, 0.3)), machine()))
    assert "waits for data" in breach.evidence
    stolen = machine(cpu_steal=0.2)
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5)), stolen))
    assert "hypervisor" in breach.evidence


def test_not_slower() -> None:
    assert not fires(slow001_slower_than_before, view(job(slowed(1.05)), machine()))
    assert not fires(slow001_slower_than_before, view(job(rank(steps(20))), machine()))


# SHARE001 -----------------------------------------------------------------------------------------


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
    assert fires(share001_shared_with_others, view(trains, machine(60, **{name: much})))
    assert not fires(share001_shared_with_others, view(trains, machine(60, **{name: little})))


# DISK001 ------------------------------------------------------------------------------------------


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


# FAULT001 -----------------------------------------------------------------------------------------


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


# IDLE001 ------------------------------------------------------------------------------------------


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


# END001 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 130])
def test_an_end_that_is_none_of_an_error(code: int) -> None:
    assert not fires(end001_job_failed, view(job(ended_s=NOW, exit_code=code)))


def test_how_a_job_failed() -> None:
    (breach,) = breaches(end001_job_failed, view(job(ended_s=NOW, exit_code=1)))
    assert breach.since_s == NOW
    assert breach.title == "the job failed: exit code 1"
    (breach,) = breaches(end001_job_failed, view(job(ended_s=NOW, exit_code=137)))
    assert "signal 9" in breach.title
    full = machine(60, memory_used_bytes=63 * GIB)
    (breach,) = breaches(end001_job_failed, view(job(ended_s=NOW, exit_code=137), full))
    assert breach.title == "the job ran out of memory and was killed"
    known = ("killed", "ended from outside", ("See who ended it.",))
    killed = job(ended_s=NOW, exit_code=137, explained=known)
    (breach,) = breaches(end001_job_failed, view(killed, full))
    assert breach.title == "the job ran out of memory and was killed"
    known = ("CUDA out of memory", "the batch is too large", ("Take a smaller batch.",))
    (breach,) = breaches(end001_job_failed, view(job(ended_s=NOW, exit_code=1, explained=known)))
    assert breach.title == "the job failed: CUDA out of memory"
    assert breach.cure.text == "Take a smaller batch."
    (breach,) = breaches(end001_job_failed, view(job(ended_s=NOW)))
    assert "together with its flatout run" in breach.title


# All ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_healthy_jobs_are_left_in_peace(seed: int) -> None:
    of, samples = random_job(seed)
    for module in rules.every():
        for seen in (view(None, samples), view(of, samples)):
            assert not fires(module, seen), module.RULE.code


numbers = st.one_of(st.none(), st.floats(0, 1e15), st.just(0.0))
gpu_samples = st.builds(
    GpuSample,
    index=st.integers(0, 1),
    vendor=st.just("nvidia"),
    utilization=numbers,
    power_w=numbers,
    power_limit_w=numbers,
    clock_mhz=numbers,
    clock_max_mhz=numbers,
    memory_used_bytes=st.one_of(st.none(), st.integers(0, 2**40)),
    memory_bytes=st.one_of(st.none(), st.integers(0, 2**40)),
    throttles=st.one_of(st.none(), st.just(("sw_thermal_slowdown",))),
)


@settings(max_examples=60, deadline=None)
@given(
    gpus=st.lists(gpu_samples, max_size=2),
    losses=st.lists(st.one_of(st.none(), st.floats()), max_size=60),
    memory=st.one_of(st.none(), st.integers(0, 2**42)),
    code=st.one_of(st.none(), st.integers(0, 300)),
)
def test_no_history_makes_a_rule_fail(
    gpus: list[GpuSample], losses: list[float | None], memory: int | None, code: int | None
) -> None:
    samples = [
        MachineSample(NOW - 60 + second, "n", gpus=tuple(gpus), memory_bytes=memory)
        for second in range(60)
    ]
    taken = [
        step
        for loss in losses
        for step in steps(0.1, loss=lambda _, value=loss: value)  # type: ignore[misc]
    ]
    odd = job(rank(taken, gpus=(0,)), ended_s=NOW if code else None, exit_code=code)
    for module in rules.every():
        for seen in (view(odd, samples), view(odd, []), view(None, []), View(NOW, "n")):
            for breach in module.check(seen):
                assert len(breach.title) <= 100
                assert breach.evidence
