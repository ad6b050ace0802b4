"""Sum the gradients of slices that are read or written in a loop in one pass.

## What it does
Where slices of one large tensor are read with numbers and slices (`x[:, t]`, `x[t]`, `qkv[0]`,
`x[..., i:j]`), or an embedding is looked up more than once before its weights change, it adds their
gradients into one gradient of the whole tensor. Where slices of a buffer are written one by one
(`outputs[:, t] = y`), it passes the gradient of the buffer on without a copy.

## Why it is faster
As written, the gradient of each slice that is read is put into zeros as large as the whole tensor,
and all of these are added; for each slice that is written, the gradient of the whole buffer is
copied. A loop over the steps of a sequence thus costs the square of its length. Each look-up in an
embedding gives a gradient as large as the embedding: a decoder has one at each word, a recommender
one each for what was liked and what was not.

Measured with torch 2.13 on an Intel Xeon with AMX, forward and backward: a loop that reads 64 steps
of 8 x 1,024 numbers took 5.6 ms in place of 26 (one core), one that reads and writes 50 steps of
32 x 256 numbers 13 ms in place of 33 (one core), and 20 look-ups of 64 among 5,000 words of 256
numbers 4.6 ms in place of 15.

## When it does nothing
- The model is on an accelerator, or compiled.
- The tensor has fewer than 65,536 numbers, or no gradient.
- A single slice is read, or the slices are made by `unbind`, `split` or `chunk`: their gradient is
  one pass already.
- Slices are picked by tensors or lists, or more than a quarter of an embedding's numbers at a time.
- The embedding has sparse gradients, or scales them by frequency.
- Slices of a buffer are written again, or with another shape than theirs, or the buffer had a
  gradient before.

## What it may change
If a number of the tensor is used three times or more, its gradients may be added in another order:
the last bits differ. Up to four such tensors, with what they were computed from, stay in memory
until the backward pass. Hooks on the `grad_fn` of a slice, and those of `register_backward_hook` on
an embedding, see None in place of gradients that are added here.

## How it is undone
torch's own functions are put back; the backward pass of a graph recorded before still works.

## References
- https://docs.pytorch.org/docs/stable/generated/torch.unbind.html
- https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/functions/tensor.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flatout_agent.boost import Applied, Boost, Moment, Risk, whole_speedup
from flatout_agent.boosts import (
    COMPILED,
    counting,
    require_cpu,
    speedup_of_work,
    why_not_eager_on_cpu,
)
from flatout_agent.speedups.slice_gradients import SMALLEST, slice_gradients

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(since="0.2.0", risk=Risk.EXACT, moment=Moment.MODEL, outside_calls=True)

WHOLE = 2.0
"""The time that gradients of slices take, with that of adding them, by that of making them."""
MOST = 0.8
"""The largest share of a step that is put down to them."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    return why_not_eager_on_cpu(facts)


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: much for a loop over the steps of a sequence, nothing for most programs."""
    if "slices" not in facts.shares:
        return speedup_of_work(facts, 1.02)
    share = min(MOST, WHOLE * facts.shares["slices"])
    return max(whole_speedup((share, 4.0)), 1.01)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Replace the functions from now on."""
    require_cpu(target, COMPILED)
    gradients = slice_gradients()
    none = f"no slices of a tensor of {SMALLEST:,} numbers were read or written in turn"
    gradients.hold()
    return Applied(
        gradients.let_go, counting(lambda: gradients.taken, "slices read or written", none)
    )


def by_hand(facts: JobFacts, params: Params) -> str:
    """All slices at once, whose gradients are stacked."""
    return (
        "steps = x.unbind(1)  # once, before the loop\n"
        "y = [cell(steps[t]) for t in range(len(steps))]  # for x[:, t]\n"
        "outputs = torch.stack(y, 1)  # after the loop, for outputs[:, t] = y\n"
    )
