"""Rules about what a job does, each at its planted fault and at what only looks like it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from flatout.watching.alerts import (
    end001_job_failed,
    hang001_job_hangs,
    nan001_loss_not_finite,
    rank001_rank_holds_others_up,
    slow001_slower_than_before,
    wait001_waits_for_data,
)
from flatout.watching.rules import JobHistory, RankHistory, View
from flatout_agent.wire import pulse
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


def hung(silent_s: float, cpu: float = 0.0, **more: object) -> RankHistory:
    return rank(steps(600, until_s=NOW - silent_s), cpu=cpu, **more)  # type: ignore[arg-type]


def test_a_hang_of_idle_processes() -> None:
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90)), machine()))
    assert breach.title == "the job hangs after step 6000"
    assert "no step for 90 s" in breach.evidence
    assert "processes do nothing" in breach.evidence


def test_the_rank_that_is_least_far_is_named() -> None:
    behind = rank(steps(590, until_s=NOW - 90), number=1, cpu=0.0)
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90), behind), machine()))
    assert "rank 1 is least far" in breach.evidence


def test_one_rank_that_takes_no_step_while_the_others_go_on() -> None:
    behind = rank(steps(500, until_s=NOW - 100), number=1, cpu=1.0)
    ahead = rank(steps(600, until_s=NOW), cpu=1.0)
    (breach,) = breaches(hang001_job_hangs, view(job(ahead, behind), machine()))
    assert "rank 1 is least far; others are up to 1000 steps ahead" in breach.evidence
    also = rank(steps(500, until_s=NOW - 100), number=2, cpu=1.0)
    (breach,) = breaches(hang001_job_hangs, view(job(ahead, behind, also), machine()))
    assert "others are up to 1000 steps ahead" in breach.evidence
    behind.ended = True  # it had less to do
    assert not fires(hang001_job_hangs, view(job(ahead, behind), machine()))
    late = rank(steps(590, until_s=NOW - 10), number=1, cpu=1.0)
    assert not fires(hang001_job_hangs, view(job(ahead, late), machine()))


def test_a_rank_that_has_ended_is_named_where_the_others_hang() -> None:
    gone = rank(steps(500, until_s=NOW - 100), number=1)
    gone.ended = True
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90), gone), machine()))
    assert "rank 0 is least far, rank 1 has ended; its processes do nothing" in breach.evidence


def evaluating(last: int, silent_s: float, cpu: float = 0.0) -> View:
    """It evaluates for 80 s after each 1000 steps; its last step is `last`."""
    taken = steps(
        last / 10,
        until_s=NOW - silent_s,
        flags=lambda step: 1 | (pulse.EVALUATED if step % 1000 == 1 else 0),
        duration=lambda step: 80.0 if step % 1000 == 1 else 0.1,
    )
    return view(job(rank(taken, cpu=cpu)), machine())


def on_gpu(silent_s: float, **more: float) -> View:
    """Its processes compute, and its GPU is as one that trains, but for `more`."""
    seen = hung(silent_s, cpu=1.0, gpus=(0,))
    return view(job(seen), machine(gpu=lambda second: replace(HEALTHY, **more)))


def asleep(cpu: float) -> View:
    samples = [sample for sample in machine() if not NOW - 800 < sample.time_s < NOW - 20]
    return view(job(hung(800, cpu=cpu)), samples)


def clock_put_back(lasted_s: int) -> View:
    return view(job(rank(steps(600, until_s=NOW + 3600), cpu=0.0)), machine(lasted_s))


def waits_for_its_user() -> View:
    debugged = hung(600)
    debugged.waits_for_input = True
    return view(job(debugged), machine())


def tuned() -> View:
    taken = steps(600, until_s=NOW - 90, flags=lambda step: pulse.TUNING)
    return view(job(rank(taken, cpu=0.0)), machine())


HANGS: dict[str, Callable[[], View]] = {
    "a GPU that spins": lambda: on_gpu(90, utilization=1.0, power_w=120.0),
    "a GPU that does nothing for long": lambda: on_gpu(900, utilization=0.0, power_w=80.0),
    "busy processes, for long": lambda: view(job(hung(700, cpu=1.0)), machine()),
    "longer than an evaluation that is due": lambda: evaluating(9000, 250),
    "busy, and no evaluation is due": lambda: evaluating(8500, 650, cpu=1.0),
    "never a step": lambda: view(job(rank([], cpu=0.0)), machine()),
    "after the clock was put back": lambda: clock_put_back(90),
}
NO_HANGS: dict[str, Callable[[], View]] = {
    "a short stall": lambda: view(job(hung(30)), machine()),
    "an evaluation": lambda: view(job(hung(90, cpu=1.0)), machine()),
    "busy processes": lambda: view(job(hung(500, cpu=1.0)), machine()),
    "a GPU that works": lambda: on_gpu(90),
    "a first evaluation on a GPU": lambda: on_gpu(900),
    "an evaluation that is due": lambda: evaluating(9000, 150),
    "busy, and an evaluation is due": lambda: evaluating(9000, 650, cpu=1.0),
    "it waits for its user": waits_for_its_user,
    "it is tuned": tuned,
    "it has ended": lambda: view(job(hung(90), ended_s=NOW - 80), machine()),
    "it begins, and computes": lambda: view(job(rank([], cpu=1.0)), machine()),
    "it begins": lambda: view(job(rank([], cpu=0.0), began_s=NOW - 300), machine()),
    "the clock was put back just now": lambda: clock_put_back(30),
    "the machine slept": lambda: asleep(0.0),
    "the machine slept, and computes": lambda: asleep(1.0),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang(name: str) -> None:
    assert fires(hang001_job_hangs, HANGS[name]())


@pytest.mark.parametrize("name", NO_HANGS)
def test_no_hang(name: str) -> None:
    assert not fires(hang001_job_hangs, NO_HANGS[name]())


def test_gaps_that_are_usual_are_told() -> None:
    (breach,) = breaches(hang001_job_hangs, evaluating(8500, 90))
    assert "gaps of up to 100 ms are usual here" in breach.evidence


def test_a_hang_goes_on_below_a_higher_threshold() -> None:
    (breach,) = breaches(hang001_job_hangs, view(job(hung(90, cpu=0.07)), machine()))
    assert not breach.fires
    assert not breaches(hang001_job_hangs, view(job(hung(90, cpu=0.2)), machine()))
    (breach,) = breaches(hang001_job_hangs, on_gpu(90, utilization=0.92, power_w=300.0))
    assert not breach.fires


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
    fallen.first_step_scale = 128.0 * 200
    (breach,) = breaches(nan001_loss_not_finite, view(job(fallen)))
    assert not breach.fires


def test_starvation_names_the_boost() -> None:
    starved = job(rank(steps(120, wait=0.4)), wait_boost="loader-workers")
    (breach,) = breaches(wait001_waits_for_data, view(starved))
    assert breach.fires
    assert breach.boost == "loader-workers"
    assert breach.title == "the job waits for its data 40% of the time"


def test_no_starvation() -> None:
    assert not fires(wait001_waits_for_data, view(job(rank(steps(120, wait=0.05)))))
    unknown = [replace(step, wait_s=None) for step in steps(120)]
    assert not fires(wait001_waits_for_data, view(job(rank(unknown))))
    early = job(rank(steps(120, wait=0.4)), began_s=NOW - 120)  # the first epoch fills caches
    assert not fires(wait001_waits_for_data, view(early))
    (breach,) = breaches(wait001_waits_for_data, view(job(rank(steps(120, wait=0.12)))))
    assert not breach.fires  # it would keep an alert, and begins none


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
    assert not breaches(rank001_rank_holds_others_up, view(job(*taken)))
    taken = [rank(steps(60, own_s=own), number) for number, own in enumerate((0.04, 0.04, 0.047))]
    (breach,) = breaches(rank001_rank_holds_others_up, view(job(*taken)))
    assert not breach.fires  # it would keep an alert, and begins none
    taken[0].ended = True
    assert not breaches(rank001_rank_holds_others_up, view(job(*taken)))


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


def slowed(ratio: float, wait: float = 0.0) -> RankHistory:
    early = steps(30, 0.1, until_s=NOW - 400)
    late = steps(360, 0.1 * ratio, wait, first=301)
    return rank([*early, *late])


def test_slower_and_why() -> None:
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5)), machine()))
    assert breach.fires
    assert breach.title == "a step takes 1.50 times as long as at the start"
    assert "no cause was seen" in breach.evidence
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5, 0.3)), machine()))
    assert "waits for data" in breach.evidence
    stolen = machine(cpu_steal=0.2)
    (breach,) = breaches(slow001_slower_than_before, view(job(slowed(1.5)), stolen))
    assert "hypervisor" in breach.evidence


def test_not_slower() -> None:
    assert not fires(slow001_slower_than_before, view(job(slowed(1.05)), machine()))
    assert not fires(slow001_slower_than_before, view(job(rank(steps(20))), machine()))


@pytest.mark.parametrize("code", [0, 130])
def test_an_end_that_is_none_of_an_error(code: int) -> None:
    assert not fires(end001_job_failed, view(job(ended_s=NOW, exit_code=code)))


def test_how_a_job_failed() -> None:
    assert fires(end001_job_failed, view(job(ended_s=NOW)))
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
