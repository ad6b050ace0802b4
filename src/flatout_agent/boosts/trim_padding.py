"""Cut batches of padded sequences to their longest row.

## What it does
Looks at the whole numbers [rows, length] that the model is given in training. Columns at the end
that hold the same number in all rows are cut from all inputs of that length (words, masks, labels,
positions), to a multiple of a sixteenth of the length. Outputs that have the length as well are
padded with zeros, so the program's own loss sees the shapes that it expects.

## Why it is faster
Almost all operators treat padding like words: their time grows with the length of the batch, and
that of attention with its square. Many programs pad to the longest sequence of the dataset, or to
the longest that the model takes (`padding="max_length"`), while most sequences are far shorter.

## When it does nothing
- The inputs do not end with padding in all rows: it is at their beginning, or batches are padded to
  their own longest row already.
- The model's result depends on the padding, as that of a mean over all positions: the Guard
  refuses it.
- The length is in another place than the second dimension, is passed as a number, or is that of
  the batch; the outputs do not follow it; the model rejects shorter inputs. Then the call is
  repeated as written, and the boost stays off.
- The model is compiled, or trained by several ranks; evaluation.

## What it may change
Sums are taken in another order, and dropout draws other masks, as there are fewer elements. What
the model returns at cut positions is zero: a program that counts padding in a metric (accuracy over
all positions) prints another number. On a GPU each step waits until the longest row is known.

## How it is undone
The layer around the model's call is removed.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth, is_compiled
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_work
from flatout_agent.speedups.padding import WithoutPadding, lengths

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.2.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    conflicts=("compile", "cuda-graphs"),
    redraws=True,
    cuts_outputs=True,
)
LEAST = 0.05
"""Share of the length that must be padding, on average."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.world_size > 1:
        return "several ranks train the model"
    if facts.models and all(model.compiled for model in facts.models):
        return "the model is compiled"
    if facts.models and max(model.padded for model in facts.models) < LEAST:
        return "the model's inputs do not end with padding in all rows"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: the time that grows with the length is all but that of waiting."""
    padded = max((model.padded for model in facts.models), default=0.0)
    return speedup_of_work(facts, 1.0 / (1.0 - 0.9 * padded))


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Cut the inputs of the model's calls."""
    if is_compiled(target):
        raise Declined("the model is compiled")
    shorter = WithoutPadding(target)

    def layer(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: shorter.call(call, args, kwargs)

    def engaged() -> tuple[bool, str] | None:
        if shorter.refused or not shorter.calls:
            return (False, shorter.refused) if shorter.refused else None
        if not shorter.cut:
            return False, "no input ended with padding in all rows"
        return True, f"{shorter.cut} of {shorter.calls} batches cut"

    return Applied(job.wrap_call(target, Depth.PADDING, layer), engaged)


def acts_on(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it would cut these inputs."""
    return bool(lengths(args, kwargs))


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch, before the batch is used."""
    return (
        "longest = int(attention_mask.sum(1).max())  # of this batch; better: pad in collate_fn\n"
        "input_ids = input_ids[:, :longest]\n"
        "attention_mask = attention_mask[:, :longest]\n"
        "labels = labels[:, :longest]  # if there is one for each word\n"
    )
