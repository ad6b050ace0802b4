"""Multiply float32 matrices in TensorFloat-32 on Tensor Cores.

## What it does

`torch.set_float32_matmul_precision("high")`: float32 matrix multiplications on the GPU round their
factors to TensorFloat-32 (10 bits of mantissa, the range of float32). cuDNN does so for
convolutions by default.

## Why it is faster

Tensor Cores multiply TF32 at up to eight times the rate of the float32 units.

## When it does nothing

- There is no NVIDIA GPU of compute capability 8.0 or newer.
- The script sets the matmul precision itself: the script's setting wins.
- The script turned TF32 off for convolutions (`torch.backends.cudnn.allow_tf32 = False`).
- All products run in half precision already.

## What it may change

Factors are rounded to 11 significant bits; sums stay float32.

## How it is undone

The setting goes back to what it was.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
- https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_work
from flatout_agent.speedups.float_math import allow_tf32
from flatout_agent.speedups.precision import convolution_precision

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.1.0", risk=Risk.ROUNDING, moment=Moment.START, rounds_by=2.0**-12)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda" or facts.hip:
        return "TF32 needs an NVIDIA GPU"
    if facts.capability is not None and facts.capability < (8, 0):
        return "TF32 needs compute capability 8.0, this GPU has {}.{}".format(*facts.capability)
    if facts.matmul_precision != "highest":
        return f"the script sets the matmul precision itself ({facts.matmul_precision})"
    if facts.models and all(model.dtype != "float32" for model in facts.models):
        return f"the model is in {facts.models[0].dtype}, not in float32"
    if facts.models and not any(model.matmul for model in facts.models):
        return "only convolutions multiply here, and cuDNN uses TF32 for them by default"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    full = 1.05 if facts.autocast is not None else 1.6
    return speedup_of_work(facts, full)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Allow TF32. CUDA is not initialized: the script may still choose its devices."""
    import torch

    if torch.version.cuda is None:
        raise Declined("this torch was built without CUDA")
    before = torch.get_float32_matmul_precision()
    if before != "highest":
        raise Declined(f"the matmul precision is set already ({before})")
    if convolution_precision() != "tf32":  # of products, "off" looks like the default
        raise Declined("the script turned TF32 off")
    undo = allow_tf32()
    return Applied(undo, lambda: _engaged(job))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return 'torch.set_float32_matmul_precision("high")\n'


def _engaged(job: Job) -> tuple[bool, str]:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False, "the program did not use CUDA"
    on_cuda = (p.device for model in job.models for p in model.parameters() if p.is_cuda)
    capability = torch.cuda.get_device_capability(next(on_cuda, None))
    if capability < (8, 0):
        return False, "TF32 needs compute capability 8.0, this GPU has {}.{}".format(*capability)
    if not _is_allowed():
        return False, "the script set the matmul precision itself"
    return True, "compute capability {}.{}".format(*capability)


def _is_allowed() -> bool:
    import torch

    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # since 2.9, where the older name warns when it is read
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)
