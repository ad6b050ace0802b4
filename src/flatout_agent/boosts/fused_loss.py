"""Compute cross entropy and its gradient in one pass that stays in the cache.

## What it does

Replaces the function of torch that `nn.CrossEntropyLoss`, `torch.nn.functional.cross_entropy` (also
if imported by name) and the losses of transformers call, if logits on the CPU are trained.
It goes over the rows of the logits in pieces of 1 MB, and makes the gradient of a piece together
with its loss, in float32. The backward pass multiplies that gradient by the gradient of the loss,
which is usually 1: then it does nothing.

Rows that the loss ignores (words that are not masked, a prompt, padding) are left out, if they are
a quarter or more.

## Why it is faster

As written, the loss makes three more tensors as large as the logits: their log-softmax in the
forward pass, and in the backward pass the gradient of that, which is zero but for one column, and
the gradient of the logits; under autocast also a copy in float32 and its gradient. Each is written
to and read from main memory, and the exponential is taken twice. Here there is one tensor, and one
exponential.

Measured alternately with the original on one core of an AMD EPYC with torch 2.13: the loss and its
backward pass took 0.2 to 0.5 of the time for 2 to 33 million logits, and 0.5 to 0.9 if large blocks
of memory are kept (allocator), so new ones cost nothing. A step of transformers of width 128 and
256 with a vocabulary of 50,257 took 0.8 of the time, of width 512 with one of 32,000 0.95.

## When it does nothing

- The model is on an accelerator: there each piece would cost several launches, and torch's own
  kernels are already as fast.
- Fewer than 2,097,152 logits, fewer than 256 classes, or classes that do not lie side by side in
  memory (`[N, C, H, W]` as a convolution gives it).
- Targets are probabilities, `reduction="none"`, or class weights together with label smoothing.
- The logits are float64, or in half precision without autocast (the original rounds more in
  between), or float16 (a gradient that is scaled only later would underflow).
- No gradient is wanted; the loss is compiled, traced, transformed by `torch.func`, computed in
  anomaly mode or with deterministic algorithms; tensors of classes other than torch's own.

## What it may change

Sums are taken in another order: the last bits differ. With bfloat16 logits under autocast the
gradient is rounded once more if the loss is multiplied by a number other than a power of two before
`backward()`. Gradients of gradients are right to any order (if the program writes into bfloat16
logits between the two passes, second gradients are as coarse as bfloat16). The node in the graph
has another name (`loss.grad_fn`), and hooks for saved tensors see the gradient instead of the
log-softmax. Logits that are NaN or Inf no longer make the gradients NaN if the loss ignores their
row, among a quarter or more of the rows.

## How it is undone

torch's own function is put back; the backward pass of a graph recorded before still works.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
- Hsu et al., Liger Kernel: Efficient Triton Kernels for LLM Training,
  https://arxiv.org/abs/2410.10989
- Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models,
  https://arxiv.org/abs/2411.09009
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import counting, require_cpu, speedup_of_work
from flatout_agent.speedups import loss_in_pieces
from flatout_agent.speedups.stand_in import StandIn, is_plain, known_to_compilers

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL, outside_calls=True)

SMALLEST = 1 << 21
"""The fewest logits: with less, the loss as written also stays in the cache."""
COLUMNS = 256
"""The fewest classes: with less, the work per row weighs as much as that on its elements."""
MEAN, SUM = 1, 2
"""torch's numbers for the reductions."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, not on the CPU"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: much with a large vocabulary, nothing with ten classes."""
    return speedup_of_work(facts, 1.04)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace cross entropy from now on."""
    require_cpu(target)
    loss = _loss()
    if loss.why_not is not None:
        raise Declined(loss.why_not)
    none = f"no cross entropy of {SMALLEST:,} logits or more was seen"
    loss.stand_in.hold()
    return Applied(
        loss.stand_in.let_go, counting(lambda: loss.losses_computed, "losses computed", none)
    )


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same for plain targets: no rows to ignore, no weights, no smoothing."""
    return (
        "class CrossEntropy(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, logits, target):\n"
        "        loss, gradient = 0.0, torch.empty_like(logits)\n"
        "        for rows, part, index in zip(\n"
        "            logits.split(64), gradient.split(64), target.split(64)\n"
        "        ):\n"
        "            index = index[:, None]\n"
        "            loss += (rows.logsumexp(1, True) - rows.gather(1, index)).sum()\n"
        "            part.copy_(rows.softmax(1))\n"
        "            part.scatter_(1, index, part.gather(1, index) - 1)\n"
        "            part /= len(logits)\n"
        "        ctx.save_for_backward(gradient)\n"
        "        return loss / len(logits)\n"
        "\n"
        "    @staticmethod\n"
        "    def backward(ctx, factor):\n"
        "        return ctx.saved_tensors[0] * factor, None\n"
        "\n"
        "loss = CrossEntropy.apply(logits, target)\n"
    )


class Loss:
    """Handles the calls of torch's cross entropy that it can make faster, and passes on
    the others.
    """

    def __init__(self) -> None:
        import torch

        self.losses_computed = 0
        self.original: Any = torch._C._nn.cross_entropy_loss
        self.half: tuple[Any, ...] = ()
        replacement = functools.wraps(self.original)(self._call())
        self.stand_in = StandIn(torch._C._nn, {"cross_entropy_loss": replacement})
        self.why_not = self._checked(replacement)

    def _call(self) -> Any:
        def cross_entropy_loss(*args: Any, **kwargs: Any) -> Any:
            if not self.stand_in.holders or kwargs or len(args) != 6 or not self._takes(*args):
                return self.original(*args, **kwargs)
            result = self._result(*args)
            if result is None:
                return self.original(*args, **kwargs)
            self.losses_computed += 1
            # Outside of any `try`: hooks for saved tensors may raise errors of their own.
            loss, _ = loss_in_pieces.node().apply(*result)
            return loss

        return cross_entropy_loss

    def _takes(
        self,
        logits: torch.Tensor,
        target: Any,
        weight: Any,
        reduction: Any,
        ignored: Any,
        smoothing: Any,
    ) -> bool:
        """Whether it is an ordinary call of a size that is worth it."""
        import torch

        tensors = (logits, target) if weight is None else (logits, target, weight)
        if not is_plain(*tensors) or logits.numel() < SMALLEST or logits.dim() < 2:
            return False
        columns = logits.shape[1]
        if columns < COLUMNS or target.dtype is not torch.int64 or reduction not in (MEAN, SUM):
            return False
        if target.shape != logits.shape[:1] + logits.shape[2:] or type(ignored) is not int:
            return False
        if type(smoothing) not in (float, int) or not 0.0 <= smoothing <= 1.0:
            return False
        if weight is not None and (
            smoothing
            or weight.requires_grad
            or weight.shape != (columns,)
            or weight.dtype is not torch.float32
        ):
            return False
        return (
            all(item.device.type == "cpu" for item in tensors)
            and self._precise(logits.dtype)
            and logits.requires_grad
            and torch.is_grad_enabled()
            and not torch.is_anomaly_enabled()
            and not torch.are_deterministic_algorithms_enabled()
        )

    def _precise(self, dtype: torch.dtype) -> bool:
        """Whether the original computes such logits in float32."""
        import torch

        return dtype is torch.float32 or (dtype in self.half and torch.is_autocast_enabled("cpu"))

    def _result(self, *call: Any) -> tuple[Any, loss_in_pieces.Made] | None:
        """Logits as rows and their result, or None if the original is better."""
        import torch

        logits, target, weight, reduction, ignored, smoothing = call
        try:
            rows = logits
            if logits.dim() > 2:
                rows = logits.movedim(1, -1)
                if not rows.is_contiguous():
                    return None
                rows = rows.reshape(-1, logits.shape[1])
            if rows.stride(1) != 1:
                return None
            with torch.no_grad():
                terms = loss_in_pieces.terms(
                    rows, target.reshape(-1), weight, reduction == MEAN, ignored, smoothing
                )
                if terms is None:
                    return None
                return rows, loss_in_pieces.loss_and_gradient(rows, terms)
        except Exception:
            return None

    def _checked(self, replacement: Any) -> str | None:
        """Why it cannot be used with this version of torch, found by computing a loss both ways."""
        import torch

        if not known_to_compilers(self.original, replacement):
            return "this version of torch compiles its losses differently"
        try:
            if not self._agrees(torch.float32):
                return "its losses differ from those of this version of torch"
            if self._agrees(torch.bfloat16):
                self.half = (torch.bfloat16,)
        except Exception as error:
            return f"it does not work with this version of torch: {str(error).splitlines()[0]}"
        return None

    def _agrees(self, dtype: torch.dtype) -> bool:
        import torch

        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, dtype is not torch.float32):
            values = torch.arange(4 * 300, dtype=torch.float32, device="cpu").sin_().mul_(3)
            logits = values.view(4, 300).to(dtype).requires_grad_()
            target = torch.tensor([7, -100, 299, 0], device="cpu")
            usual = self.original(logits, target, None, MEAN, -100, 0.1)
            terms = loss_in_pieces.terms(logits, target, None, True, -100, 0.1)
            assert terms is not None
            with torch.no_grad():
                result = loss_in_pieces.loss_and_gradient(logits, terms)
            loss, _ = loss_in_pieces.node().apply(logits, result)
        first, second = (torch.autograd.grad(loss_value, logits)[0] for loss_value in (usual, loss))
        near = functools.partial(torch.allclose, rtol=0.01 if dtype is torch.bfloat16 else 1e-4)
        return bool(
            usual.dtype is loss.dtype
            and near(usual, loss, atol=1e-5)
            and first.dtype is second.dtype
            and near(first, second, atol=1e-6)
        )


@functools.cache
def _loss() -> Loss:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Loss()
