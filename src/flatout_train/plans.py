"""flatout.toml, the plan of `flatout tune`, as the choices of a step and of its loader."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout_agent import boosts
from flatout_agent import plan as written
from flatout_agent.boost import Declined, Moment
from flatout_agent.job import Job
from flatout_agent.plan import PlanError, WrittenPlan
from flatout_train.errors import UsageError

STARTED = (
    "allocator",
    "bf16-residual",
    "clip-grad",
    "cpu-threads",
    "cudnn-attention",
    "cudnn-benchmark",
    "fast-dropout",
    "fused-loss",
    "gc-pause",
    "onednn-matmul",
    "passive-waiting",
)
"""Boosts that hold for the whole process: `begin` applies them as `flatout run` does."""
PRECISIONS = {
    "bf16-autocast": "bf16",
    "fp16-autocast": "fp16",
    "tf32": "tf32",
    "cpu-bf16": "cpu-bf16",
}
"""Boost -> precision of the step; of several in a plan the first one here holds."""
LOADER = {"loader-pin-memory": "pin_memory", "device-prefetch": "device_prefetch"}
NOT_OURS = {
    "batch-fetch": "flatout.loader asks for whole batches by itself where the dataset gives them",
    "batch-size": "the batch size is the one given to the loader",
    "eval-without-grad": "the evaluation loop is the caller's: write it under torch.no_grad()",
    "image-cache": "flatout.image_loader keeps decoded images by itself: see its argument cache",
    "liger-kernels": "the model is the caller's: give it Liger's kernels before the step is made",
    "sample-cache": "flatout.loader keeps samples by itself: see its argument cache",
    "scaled-jpeg": "flatout.image_loader decodes each image at the size that is needed by itself",
    "sdpa-attention": "the model is the caller's: call scaled_dot_product_attention in it",
}
"""Boosts for which a step has no place, and why."""


@dataclass(frozen=True)
class StepPlan:
    """What a plan decides; None: nothing, so that the step chooses.

    What was measured against the program as written is off where the plan does not name it: it was
    not faster, or did not learn the same.
    """

    precision: str | None = None
    compile: str | bool | None = None
    layout: str | None = None
    graph: bool | None = None
    fused: bool = True
    starts: tuple[tuple[str, dict[str, Any]], ...] = ()
    """(boost, params) for `begin`."""
    loader: dict[str, Any] = field(default_factory=dict)
    """For `flatout.loader`: workers, prefetch_factor, pin_memory, device_prefetch."""
    ignored: tuple[tuple[str, str], ...] = ()
    """(boost, why a step has no place for it)"""


@dataclass(frozen=True)
class Started:
    """What was started: calling it takes all of it back, the last first."""

    undos: tuple[Callable[[], None], ...]
    declined: dict[str, str]
    """Boost -> why it does nothing here."""

    def __call__(self) -> None:
        """Take back."""
        for undo in reversed(self.undos):
            undo()


def read(path: str | Path) -> StepPlan:
    """The plan in the file.

    Raises UsageError for a file that is not there, not a plan, of a newer version than is known
    here, or that names a boost or a parameter that does not exist.
    """
    try:
        document = tomllib.loads(written.text(Path(path)))
        return _step_plan(written.read(document, Path(path)))
    except PlanError as error:
        cure = error.next_step[:1].upper() + error.next_step[1:]
        raise UsageError(f"{error.message}. {cure}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}. Correct it, or make it anew: flatout tune") from None


def begin(plan: StepPlan, job: Job | None = None) -> Started:
    """Apply what a plan sets for the whole process: threads, memory, cuDNN, Python's collector.

    A boost that cannot hold here does nothing; the reason is in `declined`. What has to be done
    after each step is done after each optimizer's `step()`.
    """
    job = Job() if job is None else job
    loader = _Loader(plan.loader.get("workers"))
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
    return Started(tuple(undos), declined)


class _Loader:
    """What cpu-threads asks of the loader: the cores that its workers need."""

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
    precise = [boost_id for boost_id in PRECISIONS if boost_id in planned]
    for boost_id in precise[1:]:
        ignored[boost_id] = f"{precise[0]} leaves no product in float32 that would gain"
    compiled: str | bool = False
    if "compile" in planned:
        mode = planned["compile"].get("mode", "default")
        compiled = "whole" if mode == "default" else mode
    return StepPlan(
        precision=PRECISIONS[precise[0]] if precise else "fp32",
        compile=compiled,
        layout="channels_last" if "channels-last" in planned else "contiguous",
        # A recording of the whole step is more than the boost could try: without it, undecided.
        graph=True if "cuda-graphs" in planned else None,
        fused="fused-optimizer" in planned,
        starts=tuple((boost_id, planned[boost_id]) for boost_id in planned if boost_id in STARTED),
        loader={
            **({"workers": "auto"} if "loader-workers" in planned else {}),
            **planned.get("loader-workers", {}),
            **{key: True for boost_id, key in LOADER.items() if boost_id in planned},
        },
        ignored=tuple(ignored.items()),
    )
