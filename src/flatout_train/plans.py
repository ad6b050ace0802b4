"""flatout.toml, the plan of `flatout tune`, as the choices of a step."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout_agent import boosts
from flatout_agent.apply import plan as written
from flatout_agent.apply.plan import PlanError, WrittenPlan
from flatout_agent.boost import Declined, Moment
from flatout_agent.job import Job
from flatout_train.errors import UsageError

STARTED = (
    "allocator",
    "bf16-residual",
    "clip-grad",
    "cpu-threads",
    "cudnn-benchmark",
    "fast-dropout",
    "fused-loss",
    "gc-pause",
    "indexed-rows",
    "packed-sequences",
    "slice-gradients",
    "sparse-matmul",
)
"""Process-wide boosts: `begin` applies them as `flatout run` does."""
PRECISIONS = {
    "bf16-autocast": "bf16",
    "fp16-autocast": "fp16",
    "tf32": "tf32",
    "cpu-bf16": "cpu-bf16",
}
"""Boost -> precision of the step; of several in a plan, the first in this order is used."""
NOT_OURS = {
    "batch-fetch": "flatout.loader fetches whole batches itself where the data set supports it",
    "frozen-bf16": "call a model that is not trained in torch.autocast where its result is made",
    "image-cache": "flatout.image_loader caches decoded images itself: see its argument cache",
    "loader-pin-memory": "flatout.loader pins what it copies to a device",
    "loader-workers": "flatout.loader chooses its workers: pass it workers= for these",
    "trim-padding": "pad each batch to its longest row where it is made",
    "sample-cache": "flatout.loader loads each sample anew: keep costly ones in the data set",
}
"""Boosts that do not apply to a step, and why."""


@dataclass(frozen=True)
class StepPlan:
    """The decisions of a plan; None if undecided, so the step chooses.

    Choices that the tuner measured are off if the plan does not list them: they were not faster, or
    changed what was learnt.
    """

    precision: str | None = None
    compile: str | bool | None = None
    layout: str | None = None
    graph: bool | None = None
    fused: bool = True
    starts: tuple[tuple[str, dict[str, Any]], ...] = ()
    """(boost, params) for `begin`."""
    workers: Any = 0
    """The loader's workers: cpu-threads leaves them cores."""
    ignored: tuple[tuple[str, str], ...] = ()
    """(boost, why it does not apply to a step)"""


@dataclass(frozen=True)
class StartedBoosts:
    """The applied settings: calling it undoes all of them, the last first."""

    undos: tuple[Callable[[], None], ...]
    declined: dict[str, str]
    """Boost -> why it was not applied."""

    def __call__(self) -> None:
        """Undo the settings."""
        for undo in reversed(self.undos):
            undo()


def read(path: str | Path) -> StepPlan:
    """The plan in the file.

    Raises UsageError for a file that does not exist, is not a plan, has a newer version than this
    flatout reads, or names an unknown boost or parameter.
    """
    try:
        document = tomllib.loads(written.text(Path(path)))
        return _step_plan(written.read(document, Path(path)))
    except PlanError as error:
        cure = error.next_step[:1].upper() + error.next_step[1:]
        raise UsageError(f"{error.message}. {cure}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}. Correct it, or create it again: flatout tune") from None


def begin(plan: StepPlan, job: Job | None = None) -> StartedBoosts:
    """Apply a plan's process-wide settings: threads, allocator, cuDNN, garbage collector.

    A boost that does not apply here is skipped; the reason is in `declined`. Work that is due after
    each step is done after each optimizer's `step()`.
    """
    job = Job() if job is None else job
    loader = _Loader(plan.workers)
    job.loaders.append(loader)
    undos: list[Callable[[], None]] = []
    declined: dict[str, str] = {}
    for boost_id, params in plan.starts:
        boost = boosts.load(boost_id)
        target = torch if boost.BOOST.moment is Moment.START else torch.nn.Module()
        try:
            undos.append(boost.apply(job, target, params).undo)
        except Declined as reason:
            declined[boost_id] = str(reason)
    if job.step_callbacks:
        undos.append(register_optimizer_step_post_hook(_after_step(job)).remove)
    return StartedBoosts(tuple(undos), declined)


class _Loader:
    """The loader as cpu-threads sees it: the number of workers, which need cores."""

    def __init__(self, workers: Any) -> None:
        self.num_workers = workers if isinstance(workers, int) else 0


def _after_step(job: Job) -> Callable[..., None]:
    def after_step(*args: Any) -> None:
        for callback in job.step_callbacks:
            callback()

    return after_step


def _step_plan(plan: WrittenPlan) -> StepPlan:
    planned = {boost.id: boost.params for boost in plan.boosts}
    ignored = {boost_id: NOT_OURS[boost_id] for boost_id in planned if boost_id in NOT_OURS}
    for boost_id in plan.removed:
        ignored[boost_id] = f"flatout no longer has it; in its place, {written.REMOVED[boost_id]}"
    precise = [boost_id for boost_id in PRECISIONS if boost_id in planned]
    for boost_id in precise[1:]:
        ignored[boost_id] = f"{precise[0]} leaves no product in float32 that would gain"
    compiled: str | bool = False
    if "compile" in planned:
        mode = planned["compile"].get("mode", "default")
        # The modes with CUDA graphs have no name of their own: a step records all that it launches.
        compiled = "tuned" if "autotune" in mode else planned["compile"].get("scope", "whole")
    return StepPlan(
        precision=PRECISIONS[precise[0]] if precise else "fp32",
        compile=compiled,
        layout="channels_last" if "channels-last" in planned else "contiguous",
        # Recording the whole step is more than the boost could try, so it is undecided without it.
        graph=True if "cuda-graphs" in planned else None,
        fused="fused-optimizer" in planned,
        starts=tuple((boost_id, planned[boost_id]) for boost_id in planned if boost_id in STARTED),
        workers=planned.get("loader-workers", {}).get("workers", 0),
        ignored=tuple(ignored.items()),
    )
