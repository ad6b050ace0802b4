"""Values that operators of the first followed step take: indices of embeddings, ignored targets.

A `Flow` passes each operator on; `questions` reads the records. This costs a few small reductions,
in this step only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.watch.profile.flow.records import FlowNode, FlowStorage
from flatout_agent.watch.profile.storages import storage_key
from flatout_agent.watch.tensors import readable

Taken = Sequence[tuple[torch.Tensor, FlowStorage, bool]]
"""The tensors that an operator takes, in order, with their storages."""

LOOKUPS = {"aten.embedding": 4, "aten._embedding_bag": 5}
"""The position of the argument `sparse`; a weight and indices come first."""
LOSSES = ("aten.nll_loss_forward", "aten.nll_loss2d_forward")
"""Losses that take log-probabilities, a target, weights, a reduction and the ignored class."""


@dataclass(slots=True)
class FlowLookup:
    """One call of an embedding."""

    node: int
    weight: int
    """Its storage."""
    rows: int
    width: int
    indices: int
    touched: int
    """Distinct rows."""


@dataclass(slots=True)
class FlowLoss:
    """One call of a loss over classes."""

    node: int
    classes: int
    targets: int
    ignored: int


class FlowValues:
    """A `Flow`'s records of values."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self.names = {
            key: name
            for model in models
            for name, parameter in model.named_parameters()
            if (key := storage_key(parameter)) is not None
        }
        """Names of the weights, such as encoder.words.weight."""
        self.lookups: list[FlowLookup] = []
        self.losses: list[FlowLoss] = []

    def operator(self, index: int, node: FlowNode, args: Any, taken: Taken) -> None:
        """The operator of this number has run in a forward pass or outside one."""
        if node.step or node.backward:
            return
        if node.name in LOOKUPS:
            place = LOOKUPS[node.name]
            weight, indices = args[0], args[1]
            sparse = len(args) > place and args[place]
            if sparse or not weight.requires_grad or weight.dim() != 2 or not readable(indices):
                return
            rows, width = weight.shape
            touched = int(indices.unique().numel()) if indices.numel() < rows else rows
            self.lookups.append(
                FlowLookup(index, taken[0][1].ref.cdata, rows, width, indices.numel(), touched)
            )
        elif node.name in LOSSES and readable(args[1]):
            ignored = int((args[1] == args[4]).sum())
            classes = args[0].shape[1 if args[0].dim() > 1 else 0]
            self.losses.append(FlowLoss(index, int(classes), args[1].numel(), ignored))
