"""Compute padded sequences without most of their padding.

## What it does
Looks at the whole numbers [rows, length] that the model is given in training. Columns at the end
that hold the same number in all rows are cut from all inputs of that length (words, masks, labels,
positions), to a multiple of a sixteenth of the length. On the CPU, rows of about the same length
are computed together, in two or four calls of the model, if that leaves at most 0.8 of the work and
takes less time in a first comparison. Outputs are put together in the order and the shapes that the
program expects, with zeros where the full length has more; a loss that the model returns is put
together from those of the parts, by the rule (mean over rows or targets, sum) that gives the same
in a first comparison without dropout.

## Why it is faster
Almost all operators treat padding like words: their time grows with the length of the batch, and
that of attention with its square. Many programs pad to the longest sequence of the dataset, or to
the longest that the model takes (`padding="max_length"`), while most sequences are far shorter.
In a batch that is padded to its own longest row, most rows are shorter, too. A DistilBERT whose
reviews were all padded to 256 words took 0.51 of the time with it, beside bf16-autocast and others.

## When it does nothing
- There is little padding, or it is at the beginning of the rows.
- Batches are normalised (BatchNorm), operations are so small that parts take longer, or rows
  depend on each other, as in a contrastive loss inside the model: the batch is cut, but not parted.
- The model's result depends on the padding, as that of a mean over all positions: the Guard
  refuses it.
- The length is in another place than the second dimension, is passed as a number, or is that of
  the batch. If the outputs do not follow it, or the model rejects shorter inputs, the call is
  repeated as written, and the boost stays off.
- The model is compiled, or trained by several ranks; evaluation.

## What it may change
Sums are taken in another order, and dropout draws other masks, as there are fewer elements. What
the model returns at cut positions is zero: a program that counts padding in a metric (accuracy over
all positions) prints another number. Objects other than tensors that the model returns (a cache of
keys) are those of one part. On a GPU each step waits until the longest row is known.

## How it is undone
The layer around the model's call is removed.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth, is_compiled
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_work
from flatout_agent.speedups.padding import WithoutPadding, padded

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
    tried_alone=True,
    cuts_outputs=True,
)
LEAST = 0.05
"""Share of the inputs that must be padding, on average."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.world_size > 1:
        return "several ranks train the model"
    if facts.models and all(model.compiled for model in facts.models):
        return "the model is compiled"
    if facts.models and max(model.padded for model in facts.models) < LEAST:
        return "the model's inputs have little padding"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up: the time that grows with the length is all but that of waiting."""
    padded = max((model.padded for model in facts.models), default=0.0)
    return speedup_of_work(facts, 1.0 / (1.0 - 0.9 * padded))


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Cut the inputs of the model's calls."""
    if is_compiled(target):
        raise Declined("the model is compiled")
    shorter = _known.setdefault(target, WithoutPadding(target))
    calls, less = shorter.calls, shorter.less

    def layer(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: shorter.call(call, args, kwargs)

    def engaged() -> tuple[bool, str] | None:
        if shorter.refused:
            return False, shorter.refused
        if shorter.calls == calls:
            return None
        if shorter.less == less:
            return False, "no input ended with padding"
        return True, f"{shorter.less - less} of {shorter.calls - calls} batches made shorter"

    return Applied(job.wrap_call(target, Depth.PADDING, layer), engaged)


_known: weakref.WeakKeyDictionary[torch.nn.Module, WithoutPadding] = weakref.WeakKeyDictionary()
"""By model: what was learnt of its outputs outlasts `undo`, since a tuning switches on and off."""


def forget(job: Job) -> None:
    """Drop what was learnt of this job's models."""
    for model in job.models:
        _known.pop(model, None)


def acts_on(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it would cut these inputs."""
    return padded(args, kwargs) > 0.0


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch, before the batch is used."""
    return (
        "longest = int(attention_mask.sum(1).max())  # of this batch; better: pad in collate_fn\n"
        "input_ids = input_ids[:, :longest]\n"
        "attention_mask = attention_mask[:, :longest]\n"
        "labels = labels[:, :longest]  # if there is one for each word\n"
    )
