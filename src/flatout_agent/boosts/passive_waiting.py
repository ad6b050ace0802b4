"""Let compute threads sleep while they wait for each other, instead of turning in a loop.

## What it does

Sets `OMP_WAIT_POLICY=PASSIVE` before the program starts, and the older names of the same setting:
`GOMP_SPINCOUNT=0` for GNU's OpenMP (which PyTorch's own builds for Linux bring) and
`KMP_BLOCKTIME=0` for Intel's and LLVM's (conda, macOS, Windows).

## Why it is faster

At the end of every operation PyTorch's threads wait for the slowest one, at first in a busy loop.
Where a neighbour takes one of the cores, or the container's CPU quota is used up, the thread that
waits burns the time that the thread it waits for would need. Measured on 2 cores beside busy
neighbours, torch 2.13: a training step of an LSTM took 13 to 1,440 ms as usual and 7 ms with
threads that sleep, of a small MLP 54 ms and 0.3 ms.

## When it does nothing

The model is on an accelerator; there is one compute thread; torch was built without OpenMP; the
environment chooses a way of waiting already.

A thread that sleeps takes some microseconds to wake up. On an idle machine, steps made of many
short operations can therefore become slower; the trial shows it.

## What it may change

No number: the same threads compute the same parts.

## How it is undone

OpenMP reads the variables once, when it is loaded: what was set ends with the process.

## References

- https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
- https://www.openmp.org/spec-html/5.2/openmpse116.html
- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flatout_agent.boosts import Applied, Boost, Declined, Moment, Risk, Switch

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.START, switch=Switch.START)

VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why sleeping threads are not for this job."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}"
    if facts.threads < 2:
        return "there is one compute thread, which waits for nobody"
    for name in VARIABLES:
        if name in os.environ:
            return f"{name} is set already"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Large where threads must share cores; whether neighbours are busy, only the trial shows."""
    return 1.3 if facts.threads > facts.cores else 1.01


def environment(facts: JobFacts, params: Params) -> dict[str, str]:
    """What must be set before the process starts; nothing where the boost does not apply."""
    return {} if applies(facts, params) is not None else dict(VARIABLES)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """See that the environment is the one asked for, and that there is OpenMP to read it."""
    if not target.backends.openmp.is_available():
        raise Declined("this torch was built without OpenMP")
    for name, value in VARIABLES.items():
        found = os.environ.get(name)
        if found is None:
            raise Declined(f"{name} is not set: that must be done before the start")
        if found.upper() != value:
            raise Declined(f"{name} is set to {found} already")
    return Applied(lambda: None, lambda: _told(target))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The lines in the shell."""
    return "\n".join(
        ["# in the shell, before Python starts"]
        + [f"#   export {name}={value}" for name, value in VARIABLES.items()]
    )


def _told(torch: Any) -> tuple[bool, str]:
    threads = int(torch.get_num_threads())
    if threads < 2:
        return False, "there is one compute thread, which waits for nobody"
    return True, f"{threads} threads sleep while they wait"
