"""A model's buffers that its forward pass changes (BatchNorm's running statistics), kept for undo.

A forward pass that is done again, since memory ran out in it, must not count its batch twice; and
a step that is left out for its NaN must not leave NaN in the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Buffers:
    """The buffers as they were before a step."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[nn.Module, str]] = [
            (module, name) for module in model.modules() for name in module._buffers
        ]
        self._settled = not self._places
        self._kept: list[Tensor | None] = []
        self.none = not self._places
        """The forward pass changes none."""

    def _live(self) -> list[Any]:
        return [module._buffers[name] for module, name in self._places]

    @torch.no_grad()
    def keep(self) -> None:
        """Keep them as they are now."""
        if self.none:
            return
        live = self._live()
        if self._settled and self._same_shapes(live):
            copy_all(self._kept, live)  # type: ignore[arg-type]
        else:
            self._kept = [None if each is None else each.clone() for each in live]

    def _same_shapes(self, live: list[Any]) -> bool:
        return len(self._kept) == len(live) and all(
            kept is not None
            and each is not None
            and (kept.shape, kept.dtype, kept.device) == (each.shape, each.dtype, each.device)
            for kept, each in zip(self._kept, live, strict=True)
        )

    @torch.no_grad()
    def settle(self) -> None:
        """After the first step: from now on only those that it changed; waits for the device."""
        if self._settled:
            return
        pairs = list(zip(self._places, self._kept, self._live(), strict=True))
        changed = [(place, kept) for place, kept, live in pairs if not _equal(kept, live)]
        self._places = [place for place, _ in changed]
        self._kept = [kept for _, kept in changed]
        self._settled, self.none = True, not changed

    @torch.no_grad()
    def restore(self) -> None:
        """Put them back as they were kept."""
        for (module, name), kept in zip(self._places, self._kept, strict=False):
            live = module._buffers[name]
            if kept is None:
                module._buffers[name] = None
            elif live is None or live.shape != kept.shape:
                module._buffers[name] = kept.clone()
            else:
                live.copy_(kept)

    @torch.no_grad()
    def restore_where(self, found: Tensor) -> None:
        """Put them back where `found` (0-d) is not 0, without asking the device."""
        if self.none or not self._kept:
            return
        pairs = [
            (live, kept)
            for live, kept in zip(self._live(), self._kept, strict=True)
            if live is not None and kept is not None and live.shape == kept.shape
        ]
        bad = found != 0
        for lives, kepts in by_kind([live for live, _ in pairs], [kept for _, kept in pairs]):
            now = torch.cat([live.flatten() for live in lives])
            before = torch.cat([kept.flatten() for kept in kepts])
            chosen = torch.where(bad.to(now.device), before, now)
            parts = torch.split(chosen, [live.numel() for live in lives])
            shaped = [part.view_as(live) for part, live in zip(parts, lives, strict=True)]
            torch._foreach_copy_(lives, shaped)


def by_kind(
    ones: Sequence[Tensor], others: Sequence[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The pairs, those of one dtype and device together; the others' are moved to the ones' device.

    torch's foreach kernels take mixed lists apart, tensor by tensor.
    """
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in zip(ones, others, strict=True):
        firsts, seconds = kinds.setdefault((one.dtype, one.device), ([], []))
        firsts.append(one.detach())
        seconds.append(other.detach().to(one.device))
    yield from kinds.values()


def copy_all(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensor by tensor, a launch for each dtype."""
    for targets, sources in by_kind(into, values):
        torch._foreach_copy_(targets, sources)


def _equal(kept: Tensor | None, live: Tensor | None) -> bool:
    if kept is None or live is None:
        return kept is live
    return kept.shape == live.shape and torch.equal(kept, live)
