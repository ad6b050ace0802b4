"""The training loop does other work while the device waits.

## What it sees

On an accelerator: long waits of the device (a millisecond each and more) in which the host launches
nothing, although it waits neither for a tensor nor for a batch: metrics in plain Python or NumPy,
writing files, drawing, printing.

## Why it matters

The loop's own work delays the next launch. A few milliseconds of Python a step are a few
milliseconds of an idle device.

## Cure

Do it every N steps, on the device, or in a thread of its own. The gain: the idle time, less the
garbage collector's.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- https://docs.python.org/3/library/concurrent.futures.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import savings
from flatout.diagnosing.job.host import launch_gaps
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import CallSeen

CHECK = Check(code="HOST007", severity=Severity.WARNING, since="0.2.0")
CALLS = ("print", "logging", "SummaryWriter.add_scalar", "wandb.log")
EXPLAINS = 0.5
"""Share of the waiting that a seen call must take to be named as the host's work."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the longest pause, or for the call that fills it."""
    pauses = launch_gaps.pauses(profile) if savings.accelerated(profile) else []
    if not pauses or not profile.trace_steps:
        return  # a window without steps may include the program's start
    idle = sum(gap.ms for gap in pauses)
    saves = savings.within(profile, idle - launch_gaps.paused_ms(profile))
    if not savings.worth(profile, saves):
        return
    busy = _busy_call(profile, saves)
    before = pauses[0].where
    where = busy.where if busy else (str(before) if before is not None else None)
    lines = f"in {busy.name}" if busy else "in the lines before"
    yield Diagnosis(
        title=f"the host launches nothing for {units.milliseconds(saves)} of a step",
        evidence=f"the device waits {units.milliseconds(idle)} a step in "
        f"{sum(gap.count for gap in pauses):,.1f} long pauses"
        + (f", the longest before {before}" if before is not None else "")
        + (f"; {busy.name} takes {units.milliseconds(busy.s * 1000)} a step" if busy else ""),
        cure=Cure(
            f"Check what is done {lines}: do it every 50 steps, or in a thread of its own.",
            savings.lines(
                where,
                "",
                "if step % 50 == 0:  # around what needs no device",
                "# or: with ThreadPoolExecutor(1) before the loop, pool.submit(work, values) in it",
            ),
        ),
        severity=savings.severity(profile, saves),
        where=where,
        saves_ms=saves,
        reason=f"{units.milliseconds(idle)} in which the device waits for the next launch, "
        f"{units.milliseconds(launch_gaps.paused_ms(profile))} of it garbage collection",
    )


def _busy_call(profile: Profile, waiting_ms: float) -> CallSeen | None:
    calls = profile.seen.calls if profile.seen is not None else ()
    slow_calls = [call for call in calls if call.name in CALLS and call.where is not None]
    longest = max(slow_calls, key=lambda call: call.s, default=None)
    return longest if longest and longest.s * 1000 >= EXPLAINS * waiting_ms else None
