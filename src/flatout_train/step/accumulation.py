"""Gradients of several batches that add up to exactly that of one large batch.

Every loss is a mean over the batch's weight w (samples, tokens), so the mean over all batches is
weighted by it: gradient = sum of w g / sum of w. The total weight is known only after the last
batch. Until then each batch counts relative to a nominal weight, so that a scaled fp16 loss keeps
its magnitude, and one factor at the end corrects it; with equal weights that factor is 1.
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
"""The target that torch's losses ignore (`ignore_index`)."""

Weight = float | Tensor


def weigher(weigh: str | Callable[[Any], Any]) -> Callable[[Any], Weight] | None:
    """The function batch -> weight, or None if losses are sums, which simply add up."""
    if weigh == "sum":
        return None
    if weigh == "samples":
        return batch_size
    if weigh == "tokens":
        return tokens
    return lambda batch: _number(weigh(batch))  # type: ignore[operator]


def tokens(batch: Any) -> Weight:
    """The number of targets that are not -100; on an accelerator, a 0-d tensor on the device."""
    return _number((_targets(batch) != IGNORED).sum())


def _targets(batch: Any) -> Tensor:
    targets: Any = None
    if isinstance(batch, Mapping):
        targets = batch.get("labels")
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        targets = batch[1]
    else:
        targets = getattr(batch, "labels", None)
    if not isinstance(targets, Tensor):
        raise UsageError(
            'weigh="tokens" counts batch["labels"], or the target of a pair (input, target); this '
            "batch has neither: pass as weigh a function that counts its tokens"
        )
    return targets


def _number(weight: Any) -> Weight:
    """A plain number if that needs no wait for a device, else a 0-d tensor."""
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
    """The batches of one optimizer step."""

    def __init__(
        self,
        every: int,
        weigh: str | Callable[[Any], Any],
        ranks: Ranks | None,
        device: torch.device,
    ) -> None:
        self.every, self.ranks, self.device = every, ranks, device
        self.alone = every == 1 and ranks is None
        """One batch of one process makes a step."""
        self.weigh = weigher(weigh)
        self.nominal: float | None = None
        """The assumed weight of a batch: that of the first one. Kept from group to group."""
        self.clear()

    def clear(self) -> None:
        """Begin a new group."""
        self.batches: list[tuple[Any, int]] = []
        """Batches in the gradient, and their numbers of parts: to repeat them if memory runs
        out."""
        self.base: list[Tensor | None] | None = None
        """Gradients from a saved state, of batches that are no longer available."""
        self.weight: Weight = 0.0
        self.loss: Weight = 0.0
        """Weighted sum of the losses."""
        self.count = 0

    def weights(self, parts: list[Any]) -> list[Weight]:
        """The weight of each part."""
        if self.weigh is None:
            return [1.0] * len(parts)
        return [self.weigh(part) for part in parts]

    def factors(self, weights: list[Weight]) -> list[Weight]:
        """The factor of each part's loss in its backward pass."""
        if self.weigh is None:
            return [1.0] * len(weights)
        if self.alone:
            total = added(weights)
            return [divided(weight, total) for weight in weights]
        if self.nominal is None:
            # The nominal weight is that of the first batch; waits for the device, once.
            first = float(added(weights))
            first = first if first > 0 else 1.0
            # Ranks average their gradients, so all must use the same nominal weight.
            self.nominal = first if self.ranks is None else self.ranks.largest(first, self.device)
        share = self.nominal * self.every
        return [weight / share for weight in weights]

    def add(self, batch: Any, parts: int, loss: Tensor, weights: list[Weight]) -> None:
        """Add a batch that is in the gradient, in `parts` parts; `loss` is its weighted mean."""
        weight = 1.0 if self.weigh is None else added(weights)
        self.weight = self.weight + weight
        self.loss = self.loss + weighted(loss, weight)
        if self.ranks is not None:
            self.batches.clear()  # with ranks only FSDP2's last batch is ever repeated
        self.batches.append((batch, parts))
        self.count += 1

    def mean_loss(self) -> Tensor:
        """Loss of the whole group: 0-d, on the device."""
        mean = self.loss if self.weigh is None else divided(self.loss, self.weight)
        return mean if isinstance(mean, Tensor) else torch.tensor(mean, device=self.device)

    def correction(self) -> Weight | None:
        """The factor by which the gradient must still be multiplied; None means 1."""
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
    """The sum of the weights."""
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    return total


def weighted(loss: Tensor, weight: Weight) -> Weight:
    """`loss * weight`, or 0 if the weight is 0: the mean of no elements is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss * weight, torch.zeros_like(loss))
    return loss * weight if weight else 0.0


def divided(value: Weight, divisor: Weight) -> Weight:
    """`value / divisor`, or 0 if the divisor, a weight, is 0."""
    if isinstance(divisor, Tensor):
        return torch.where(divisor > 0, value / divisor, torch.zeros_like(divisor))
    if isinstance(value, Tensor):
        return value / divisor if divisor else torch.zeros_like(value)
    return value / divisor if divisor else 0.0
