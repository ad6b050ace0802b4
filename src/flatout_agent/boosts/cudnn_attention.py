"""Ask cuDNN for attention first, on GPUs where its kernel is the fastest.

## What it does

Puts cuDNN's kernel first in the order in which `scaled_dot_product_attention` looks for one. Calls
that cuDNN cannot compute (a mask of another form, float32, large heads) go to the next kernel, as
before; kernels that the script has turned off stay off.

## Why it is faster

PyTorch takes its FlashAttention-2 kernel first, which was written for the A100. cuDNN has one for
Hopper and Blackwell that uses their asynchronous copies and matrix instructions: it is up to twice
as fast there, forward and backward.

## When it does nothing

- The GPU is older than Hopper (compute capability 9.0), or not from NVIDIA.
- Attention is not in bfloat16 or float16, or is not computed by `scaled_dot_product_attention`.
- torch is older than 2.6, where the order cannot be set.
- The model was compiled before: the kernel was chosen then.

## What it may change

Sums are taken in another order, and the weights of attention are rounded to 16 bits elsewhere.

## How it is undone

The previous order is restored.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
- https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.ROUNDING,
    moment=Moment.START,
)
HOPPER = (9, 0)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda" or facts.hip:
        return "cuDNN needs an NVIDIA GPU"
    if facts.capability is not None and facts.capability < HOPPER:
        return "before Hopper, PyTorch's own kernel is as fast"
    if facts.models and not any(model.matmul for model in facts.models):
        return "the model has no layer that multiplies matrices"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    return 1.05


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Put it first. CUDA is not initialized: the script may still choose its devices."""
    import torch

    if torch.version.cuda is None:
        raise Declined("this torch was built without CUDA")
    if not hasattr(torch._C, "_set_sdp_priority_order"):
        raise Declined("this torch cannot set the order: 2.6 or newer can")
    if not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        raise Declined("the script has turned cuDNN's attention off")
    cudnn = torch.nn.attention.SDPBackend.CUDNN_ATTENTION.value
    before = [int(kernel) for kernel in torch._C._get_sdp_priority_order()]
    if before[:1] == [cudnn]:
        raise Declined("it comes first already")
    torch._C._set_sdp_priority_order([cudnn, *(kernel for kernel in before if kernel != cudnn)])

    def undo() -> None:
        torch._C._set_sdp_priority_order(before)

    return Applied(undo, lambda: _engaged(cudnn))


def _engaged(cudnn: int) -> tuple[bool, str]:
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False, "the program did not use CUDA"
    if torch.cuda.get_device_capability() < HOPPER:
        return False, "the GPU is older than Hopper"
    if int(torch._C._get_sdp_priority_order()[0]) != cudnn:
        return False, "the script set the order itself"
    return True, ""


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "kernels = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,\n"
        "           SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]\n"
        "with sdpa_kernel(kernels, set_priority=True):  # around the model's call\n"
        "    output = model(inputs)\n"
    )
