"""From a batch to gradients: forward and backward passes of the whole batch or of its parts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.out_of_memory import is_out_of_memory, let_go
from flatout_train.step import problems
from flatout_train.step.accumulation import Group, Weight, added, divided, weighted
from flatout_train.step.buffers import Buffers
from flatout_train.step.fitting import Fit, random_states
from flatout_train.step.gradients import Gradients
from flatout_train.step.ranks import Ranks
from flatout_train.step.splitting import batch_size, split


class Passes:
    """Forward and backward passes of one model.

    A pass that runs out of memory is repeated by `Fit`, with less at a time. What the failed pass
    left behind is undone first: its gradients and its changes to buffers. The gradients of the
    earlier batches of an unfinished group are lost with it, so those batches are repeated as well.
    torch draws the same random numbers again for the failed batch, and new ones for the earlier
    batches.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Callable[[Any], Tensor],
        context: Callable[[], AbstractContextManager[Any]] | None,
        scaler: torch.amp.GradScaler | None,
        group: Group,
        gradients: Gradients,
        buffers: Buffers,
        fit: Fit,
    ) -> None:
        self._model, self._call = model, call
        self._context, self._scaler = context, scaler
        self._group, self._gradients, self._buffers = group, gradients, buffers
        self._fit = fit
        self._weights: list[Weight] = []
        self._parts = 1
        self._redo = False
        """The group's earlier batches must be repeated."""
        self._light = False
        """`Fit` is bypassed: memory has never run out, and the model draws no random numbers."""
        self._redoing = False
        """The repetition is under way, or has failed."""
        self.splits = 0
        """Calls whose batch was split."""
        self.checked = False
        """The first loss was checked."""

    def single(self, batch: Any) -> Tensor:
        """The gradient of this batch alone; returns its loss, 0-d and detached."""
        self._gradients.clear()
        if not self._buffers.none:
            self._buffers.keep()
        return self._fitted(batch)

    def first(self, batch: Any) -> Tensor:
        """The very first call, `single` or `grouped`; finds out whether the model draws random
        numbers.
        """
        device = self._group.device
        before = random_states(device)
        loss = self.single(batch) if self._group.alone else self.grouped(batch)
        drawn = not all(map(torch.equal, before, random_states(device)))
        self._light = not (drawn or self.splits)
        return loss

    def _fitted(self, batch: Any) -> Tensor:
        """The loss of a pass that is made to fit into memory.

        While memory has never run out, `Fit` has nothing to do but note that each batch fits. It is
        still needed for models that draw random numbers: it saves the random states.
        """
        if self._light:
            try:
                return self._attempt([batch])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = error
            self._light = False
            self.undo()
            self._fit.free()
            let_go(failure, self._group.device)
        loss = self._fit.run(batch, self._attempt, self.undo)
        if self._parts > 1:
            self.splits += 1
        return loss

    def recordable(self, batch: Any) -> Tensor:
        """Like `single`, without any decision on the host."""
        self._gradients.clear()
        if not self._buffers.none:
            self._buffers.keep()
        loss = self._forward(batch)
        self._backward(loss, 1.0, batch)
        return _detached(loss)

    def grouped(self, batch: Any) -> Tensor:
        """Add this batch to the group's gradient; returns its loss."""
        group, ranks = self._group, self._group.ranks
        if group.count == 0:
            self._gradients.clear()
            if not self._buffers.none:
                self._buffers.keep()
        if ranks is None:
            loss = self._fitted(batch)
        elif group.every == 1:
            loss = self._ranked(batch, ranks)
        else:
            # All ranks must communicate alike, so none may repeat a batch by itself.
            with ranks.context(group.count + 1 == group.every):
                loss = self._attempt([batch])
        group.add(batch, self._parts, loss, self._weights)
        return loss

    def synchronise(self) -> None:
        """End an incomplete group: communicate what its last backward pass would have."""
        group, ranks = self._group, self._group.ranks
        if ranks is None:
            return
        if ranks.can_reduce:
            if group.count == 0:
                self._gradients.clear()
            ranks.average_gradients(self._gradients.parameters)
        elif group.batches:
            with ranks.context(True):
                batch, _ = group.batches[-1]
                self._backward(self._forward(batch), 0.0, batch)

    def _ranked(self, batch: Any, ranks: Ranks) -> Tensor:
        """One batch per rank makes the step: their total weight is known before the end."""
        group = self._group
        self._weights = group.weights([batch])
        waited = None
        if group.weigh is not None:
            waited = ranks.start_sum(self._weights[0], group.device)
        loss = self._forward(batch)
        factor: Weight = float(ranks.world)  # ranks average, sums add up
        if waited is not None:
            total = waited()
            share = divided(self._weights[0] * ranks.world, total)
            assert isinstance(share, Tensor)
            factor = share.item() if share.device.type == "cpu" else share.to(loss.dtype)
        self._backward(loss, factor, batch)
        return _detached(loss)

    def _attempt(self, parts: list[Any]) -> Tensor:
        self._parts = len(parts)
        if self._parts == 1 and self._group.alone:
            loss = self._forward(parts[0])
            self._backward(loss, 1.0, parts[0])
            return _detached(loss)
        if self._redo:
            self._do_again()
        self._weights = self._group.weights(parts)
        return self._weighted(parts, self._weights)

    def _do_again(self) -> None:
        """Repeat the earlier batches of the group, each in as many parts as before."""
        failed_before, self._redoing = self._redoing, True
        for batch, count in self._group.batches:
            if failed_before:  # they did not fit in that many parts
                count = max(count, min(self._parts, batch_size(batch)))
            pieces = [batch] if count == 1 else split(batch, count)
            self._weighted(pieces, self._group.weights(pieces))
        self._redo = self._redoing = False

    def _weighted(self, parts: list[Any], weights: list[Weight]) -> Tensor:
        """Backward passes of all parts; returns their mean loss, or the total of loss sums."""
        group = self._group
        total: Weight = 0.0
        for part, weight, factor in zip(parts, weights, group.factors(weights), strict=True):
            loss = self._forward(part)
            # A part of weight 0 adds no gradient: its loss may be NaN, the mean of no elements.
            if isinstance(factor, Tensor) or factor or group.ranks is not None:
                self._backward(loss, factor, part)
            loss = _detached(loss)
            if len(parts) == 1:
                return loss
            total = total + weighted(loss, weight)
        if group.weigh is not None:
            total = divided(total, added(weights))
        return total if isinstance(total, Tensor) else loss

    def undo(self) -> None:
        """Undo what a failed pass did to gradients and buffers."""
        base = self._group.base
        self._gradients.clear()
        if base is not None:
            for parameter, grad in zip(self._gradients.parameters, base, strict=True):
                parameter.grad = None if grad is None else grad.clone()
        self._buffers.restore()
        self._redo = bool(self._group.batches)

    def _forward(self, batch: Any) -> Tensor:
        try:
            if self._context is None:
                loss = self._call(batch)
            else:
                with self._context():
                    loss = self._call(batch)
        except Exception as error:
            problems.add_facts(error, self._model, batch)
            raise
        if not self.checked:
            problems.check_loss(loss)
            self.checked = True
        return loss

    def _backward(self, loss: Tensor, factor: Weight, batch: Any) -> None:
        if isinstance(factor, Tensor) or factor != 1.0:
            loss = loss * factor
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            problems.add_facts(error, self._model, batch)
            raise


def _detached(loss: Tensor) -> Tensor:
    loss = loss.detach()
    return loss if loss.dtype in (torch.float32, torch.float64) else loss.float()
