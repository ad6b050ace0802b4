"""Gradients of several batches that add up to exactly that of one large batch.

Every loss is the mean over what its batch weighs (samples, tokens), so the mean over all batches
weighs each by that: gradient = sum of w g / sum of w. What all weigh together is known only after
the last one. Until then each counts relative to a nominal weight, so that a scaled fp16 loss keeps
its size, and one factor at the end puts it right; where all weigh the same, that factor is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flatout_train.errors import UsageError
from flatout_train.step.ranks import Ranks
from flatout_train.step.splitting import batch_size

IGNORED = -100
"""The target that torch's losses leave out (`ignore_index`)."""

Weight = float | Tensor


def weigher(weigh: str | Callable[[Any], Any]) -> Callable[[Any], Weight] | None:
    """How much a batch weighs; None: its loss is a sum, sums just add up."""
    if weigh == "sum":
        return None
    if weigh == "samples":
        return batch_size
    if weigh == "tokens":
        return tokens
    return lambda batch: _number(weigh(batch))  # type: ignore[operator]


def tokens(batch: Any) -> Weight:
    """The number of targets that are not -100; on an accelerator it stays there."""
    return _number((_targets(batch) != IGNORED).sum())


def _targets(batch: Any) -> Tensor:
    found: Any = None
    if isinstance(batch, Mapping):
        found = batch.get("labels")
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        found = batch[1]
    else:
        found = getattr(batch, "labels", None)
    if not isinstance(found, Tensor):
        raise UsageError(
            'weigh="tokens" counts batch["labels"], or the target of a pair (input, target); this '
            "batch has neither: pass weigh=a function that counts its tokens"
        )
    return found


def _number(weight: Any) -> Weight:
    """A plain number wherever that needs no wait for a device."""
    if isinstance(weight, Tensor):
        if weight.numel() != 1:
            raise UsageError(
                f"weigh returned a tensor of shape {list(weight.shape)}: a weight is one number"
            )
        if weight.device.type != "cpu":
            return weight.detach().reshape(())
        weight = weight.item()
    if isinstance(weight, (int, float)):
        if not weight >= 0:
            raise UsageError(f"weigh returned {weight}: a weight is one number, 0 or more")
        return weight
    raise UsageError(f"weigh returned a {type(weight).__name__}: a weight is one number, 0 or more")


class Group:
    """The batches that make one optimizer step."""

    def __init__(
        self,
        every: int,
        weigh: str | Callable[[Any], Any],
        ranks: Ranks | None,
        device: torch.device,
    ) -> None:
        self.every, self.ranks, self.device = every, ranks, device
        self.alone = every == 1 and ranks is None
        """One batch of one process makes the step."""
        self.weigh = weigher(weigh)
        self.nominal: float | None = None
        """What a batch is taken to weigh: as the first one did. Kept from group to group."""
        self.clear()

    def clear(self) -> None:
        """Begin a new group."""
        self.batches: list[tuple[Any, int]] = []
        """Those in the gradient, and in how many parts: for doing them again when memory runs
        out."""
        self.base: list[Tensor | None] | None = None
        """Gradients that came from a saved state, of batches that are gone."""
        self.weight: Weight = 0.0
        self.loss: Weight = 0.0
        """Weighted sum of the losses."""
        self.count = 0

    def weights(self, parts: list[Any]) -> list[Weight]:
        """What each part weighs."""
        if self.weigh is None:
            return [1.0] * len(parts)
        return [self.weigh(part) for part in parts]

    def factors(self, weights: list[Weight]) -> list[Weight]:
        """What to multiply each part's loss with before its backward pass."""
        if self.weigh is None:
            return [1.0] * len(weights)
        if self.alone:
            together = added(weights)
            return [divided(weight, together) for weight in weights]
        if self.nominal is None:
            self.nominal = self._nominal(added(weights))
        share = self.nominal * self.every
        return [weight / share for weight in weights]

    def _nominal(self, weight: Weight) -> float:
        """Waits for the device, at the first call ever."""
        first = float(weight)
        first = first if first > 0 else 1.0
        # Ranks average their gradients: all must count relative to the same weight.
        return first if self.ranks is None else self.ranks.largest(first, self.device)

    def add(self, batch: Any, parts: int, loss: Tensor, weights: list[Weight]) -> None:
        """A batch is in the gradient now, in so many parts; `loss` is its weighted mean."""
        weight = 1.0 if self.weigh is None else added(weights)
        self.weight = self.weight + weight
        self.loss = self.loss + weighted(loss, weight)
        if self.ranks is not None:
            self.batches.clear()  # with ranks nothing is done again, but FSDP2's last one
        self.batches.append((batch, parts))
        self.count += 1

    def mean_loss(self) -> Tensor:
        """Loss of the whole group: 0-d, on the device."""
        mean = self.loss if self.weigh is None else divided(self.loss, self.weight)
        return mean if isinstance(mean, Tensor) else torch.tensor(mean, device=self.device)

    def correction(self) -> Weight | None:
        """What the gradient is still to be multiplied with; None: nothing."""
        world = 1 if self.ranks is None else self.ranks.world
        if self.weigh is None:
            return None if world == 1 else float(world)  # ranks average, sums add up
        total: Weight = self.weight
        if self.ranks is not None:
            summed = self.ranks.start_sum(total, self.device)()
            total = summed.item() if summed.device.type == "cpu" else summed
        factor = divided((self.nominal or 1.0) * self.every * world, total)
        return None if isinstance(factor, float) and factor == 1.0 else factor


def added(weights: list[Weight]) -> Weight:
    """Their sum."""
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    return total


def weighted(loss: Tensor, weight: Weight) -> Weight:
    """`loss * weight`, and 0 for no weight: the mean over nothing is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss * weight, torch.zeros_like(loss))
    return loss * weight if weight else 0.0


def divided(value: Weight, by: Weight) -> Weight:
    """`value / by`, and 0 where nothing was weighed."""
    if isinstance(by, Tensor):
        return torch.where(by > 0, value / by, torch.zeros_like(by))
    if isinstance(value, Tensor):
        return value / by if by else torch.zeros_like(value)
    return value / by if by else 0.0
