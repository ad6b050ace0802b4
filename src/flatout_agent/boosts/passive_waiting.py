"""Let compute threads sleep while they wait for each other, instead of spinning.

## What it does

Sets, before the program starts, how long an OpenMP thread spins before it sleeps: `spins = 0` not
at all, `1000` for ten to thirty microseconds. The variables are `OMP_WAIT_POLICY=PASSIVE` and the
libraries' own: `GOMP_SPINCOUNT` of GNU's OpenMP (which PyTorch's own builds for Linux bring) and
`KMP_BLOCKTIME`, in milliseconds, of Intel's and LLVM's (conda, macOS, Windows).

## Why it is faster

At the end of every operation PyTorch's threads wait for the slowest one, spinning at first: for
four to nine milliseconds with GNU's OpenMP, as measured. If another process occupies one of the
cores, or the container's CPU quota is used up, a spinning thread burns the time that the thread it
waits for needs. Measured with 2 threads on 2 cores beside a busy process, torch 2.13: a training
step of a small MLP took 92 ms by default, 0.8 ms with 1,000 spins and 0.3 ms with none; of an MLP
with layers of 512, 202 ms, 9 ms and 3.5 ms.

## When it does nothing

The model is on an accelerator; there is one compute thread; torch was built without OpenMP; the
environment already sets how threads wait.

On an idle machine it does harm: a thread that sleeps takes some ten microseconds to wake up, in a
virtual machine more. There the same steps took 0.17 ms by default, 0.24 ms with 1,000 spins and 0.7
ms with none, and those of an LSTM 2.9 ms and 13 ms with none. So the gain depends on how busy the
machine is, and a trial beside other processes says nothing about the time after they end.

## What it may change

Nothing: the same threads compute the same parts.

## How it is undone

OpenMP reads the variables once, when it is loaded: the settings end with the process.

## References

- https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
- https://www.openmp.org/spec-html/5.2/openmpse116.html
- https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.START,
    switch=Switch.START,
    params={"spins": (0, 1000)},
)
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why sleeping threads do not suit this job."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}"
    if facts.threads < 2:
        return "there is only one compute thread"
    for name in NAMES:
        if name in os.environ:
            return f"{name} is set already"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Large if threads share cores; only the trial shows whether other processes are busy."""
    return 1.3 if facts.threads > facts.cores else 1.01


def environment(facts: JobFacts, params: Params) -> dict[str, str]:
    """Variables to set before the process starts; none if the boost does not apply."""
    return {} if applies(facts, params) is not None else _variables(params)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Check that the environment is as requested, and that there is OpenMP to read it."""
    import torch

    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        raise Declined("this torch was built without OpenMP")
    for name, value in _variables(params).items():
        setting = os.environ.get(name)
        if setting is None:
            raise Declined(f"{name} is not set: that must be done before the start")
        if setting.upper() != value:
            raise Declined(f"{name} is set to {setting} already")
    return Applied(lambda: None, lambda: _engagement(_spins(params)))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The lines in the shell."""
    return "\n".join(
        ["# in the shell, before Python starts"]
        + [f"#   export {name}={value}" for name, value in _variables(params).items()]
    )


def _spins(params: Params) -> int:
    return int(params.get("spins", 0))


def _variables(params: Params) -> dict[str, str]:
    spins = _spins(params)
    values = ("PASSIVE", str(spins), "1" if spins else "0")
    return dict(zip(NAMES, values, strict=True))


def _engagement(spins: int) -> tuple[bool, str]:
    import torch

    threads = int(torch.get_num_threads())
    if threads < 2:
        return False, "there is only one compute thread"
    return True, f"{threads} threads sleep {f'after {spins} spins' if spins else 'while they wait'}"
