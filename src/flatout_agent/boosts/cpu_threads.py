"""Match the number of compute threads to the cores that this process really has.

## What it does
Calls `torch.set_num_threads` before the first training step. `threads = "auto"` takes all usable
cores (affinity and the cgroup's quota), divided among the processes of the job, minus one for each
loader worker; a fraction takes that share of them, a whole number exactly that many.

## Why it is faster
PyTorch starts one thread for each core of the machine. In a container or a batch job that has only
some of them, threads wait for each other at the end of every operation. `torchrun` does the
opposite and sets one thread for each process. Small operations, too, can be faster on fewer
threads than there are cores, and loader workers need cores of their own.

## When it does nothing
The model is on an accelerator; the number of threads is right already; the script or
OMP_NUM_THREADS sets the number itself.

## What it may change
The same arithmetic, reordered: sums over large tensors are split at different points, so the last
bits may differ.

## How it is undone
The previous number of threads is restored.

## References
- https://pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
- https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import require_cpu
from flatout_agent.limits import local_processes, usable_cores
from flatout_agent.speedups import compute_threads

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    params={"threads": ("auto", 0.75, 0.5, 0.25)},
)
RESTLESS = 0.15
"""Noise of neighbouring steps that indicates a shared machine."""
HEAVY, HEAVY_SHARE = ("products", "convolutions", "attention"), 0.25
"""Operations that gain from each core, and the share of the step from which they decide ..."""
FEW_CORES, LONG_STEP_S = 4, 0.1
"""... on so few cores, in steps so long that starting threads does not matter."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why this number of threads is not worth trying."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}"
    chosen = _chosen_by_script(facts.threads, facts.cores, facts.world_size)
    if facts.threads_named:
        return f"the environment (OMP_NUM_THREADS) asks for {facts.threads} threads"
    if chosen is not None:
        return chosen
    workers = sum(loader.num_workers for loader in facts.loaders[:1])
    share = _share(facts.cores, facts.world_size)
    count = _count(params, share, workers)
    if count == facts.threads:
        return f"{count} thread{'s' if count > 1 else ''} already, on {share} usable cores"
    tried = BOOST.params["threads"]
    threads = params.get("threads", "auto")
    for earlier in tried[: tried.index(threads)] if threads in tried else ():
        if count == _count({"threads": earlier}, share, workers):
            return f"the same as {earlier} here ({count})"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Large if threads outnumber the cores or cores are idle, else a matter of trial."""
    share = _share(facts.cores, facts.world_size)
    if facts.threads > share:
        return 1.5
    if params.get("threads", "auto") == "auto" and facts.threads < share:
        return min(2.0, share / facts.threads)
    if facts.noise is not None and facts.noise > RESTLESS and facts.threads > 1:
        return 1.3  # threads that wait for each other suffer most from other busy processes
    heavy = sum(facts.shares.get(kind, 0.0) for kind in HEAVY)
    if share <= FEW_CORES and (facts.step_s or 0.0) > LONG_STEP_S and heavy > HEAVY_SHARE:
        return 1.0  # large operations keep few cores busy: each that is left out is missed
    return 1.02


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Set the number of threads for the thread that trains; a second model finds it set."""
    import torch

    require_cpu(target)
    before = int(torch.get_num_threads())
    processes = local_processes()
    share = _share(usable_cores(), processes)
    workers = next((int(loader.num_workers) for loader in job.loaders), 0)
    count = _count(params, share, workers)
    if before == count:
        if len(job.models) > 1 or params.get("threads", "auto") != "auto":
            return Applied(lambda: None, lambda: (True, f"{count} threads"))
        raise Declined(f"{count} threads already, on {share} usable cores")
    chosen = _chosen_by_script(before, usable_cores(), processes)
    if chosen is not None:
        raise Declined(chosen)
    return Applied(compute_threads.use(count), lambda: _engagement(count, before))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The call, or the variable, that does the same."""
    workers = sum(loader.num_workers for loader in facts.loaders[:1])
    count = _count(params, _share(facts.cores, facts.world_size), workers)
    return f"torch.set_num_threads({count})  # before training; or OMP_NUM_THREADS={count}"


def _share(cores: int, processes: int) -> int:
    return max(1, cores // max(1, processes))


def _count(params: Params, share: int, workers: int) -> int:
    threads = params.get("threads", "auto")
    if threads == "auto":
        return max(1, share - workers)
    if isinstance(threads, float):
        return max(1, int(share * threads))
    return max(1, int(threads))


def _chosen_by_script(threads: int, cores: int, processes: int) -> str | None:
    """Whether PyTorch itself chose this number: a thread for each core or, with hyper-threading,
    for every second one.

    Several processes with one thread each are the choice of torchrun, not of the script.
    """
    if threads >= cores or threads == cores // 2 or (processes > 1 and threads == 1):
        return None
    return f"the script or OMP_NUM_THREADS chose {threads} threads, {cores} cores are usable"


def _engagement(count: int, before: int) -> tuple[bool, str]:
    import torch

    threads = int(torch.get_num_threads())
    if threads != count:
        return False, f"the script has set {threads} threads since"
    return True, f"{count} threads instead of {before}"
