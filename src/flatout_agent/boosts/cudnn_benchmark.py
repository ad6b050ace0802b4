"""Let cuDNN measure its convolution algorithms and take the fastest.

## What it does

`torch.backends.cudnn.benchmark = True`: the first time that a convolution meets a shape, cuDNN runs
its algorithms and keeps the fastest for that shape.

## Why it is faster

By default cuDNN chooses by a heuristic, without measuring, and for some shapes chooses badly.

## When it does nothing

- The model has no convolution, or does not run on a GPU.
- The script asks for deterministic algorithms, or sets it itself.
- Input shapes keep changing: each new one would be measured again.

## What it may change

Another algorithm sums in another order, so results differ in the last bits, and may do so from run
to run. The first step at each shape is slower.

## How it is undone

The setting goes back to what it was.

## References

- https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.START,
    # cuDNN's plans are kept by shape, whether they were measured or guessed: in a running program
    # all shapes have theirs already (run_single_conv in ATen/native/cudnn/Conv_v8.cpp).
    switch=Switch.START,
)
MANY_SHAPES = 4
"""From this many shapes in the first steps on, measuring each costs more than it saves."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda":
        return f"cuDNN needs a GPU, the model is on {facts.device}"
    if facts.deterministic:
        return "the script asks for deterministic algorithms"
    if facts.cudnn_benchmark:
        return "the script sets it itself"
    if facts.models and not any(model.conv2d for model in facts.models):
        return "the model has no 2-d convolution"
    shapes = max((len(model.input_shapes) for model in facts.models), default=0)
    if shapes > MANY_SHAPES:
        return f"{shapes} input shapes were seen, and each would be measured again"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    return 1.05


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Turn measuring on. CUDA is not initialized: the script may still choose its devices."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        raise Declined("this torch was built without CUDA")
    cudnn = torch.backends.cudnn
    if cudnn.benchmark:
        raise Declined("it is on already")
    if _deterministic():
        raise Declined("the script asks for deterministic algorithms")
    cudnn.benchmark = True

    def undo() -> None:
        cudnn.benchmark = False

    return Applied(undo, _engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return "torch.backends.cudnn.benchmark = True\n"


def _deterministic() -> bool:
    import torch

    return bool(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def _engaged() -> tuple[bool, str]:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False, "the program did not use CUDA"
    if not torch.backends.cudnn.benchmark:
        return False, "the script turned it off"
    if _deterministic():
        return False, "the script asks for deterministic algorithms"
    return True, ""
