"""A model's buffers that its forward pass changes (BatchNorm's running statistics), saved for undo.

A forward pass that is repeated because memory ran out must not count its batch twice, and a step
that is skipped because of NaN must not leave NaN in the statistics.
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
        self._copies: list[Tensor | None] = []
        self.none = not self._places
        """Whether the forward pass changes no buffers."""

    def _live(self) -> list[Any]:
        return [module._buffers[name] for module, name in self._places]

    @torch.no_grad()
    def keep(self) -> None:
        """Save the current buffers."""
        if self.none:
            return
        live = self._live()
        if self._settled and self._same_shapes(live):
            copy_all(self._copies, live)  # type: ignore[arg-type]
        else:
            self._copies = [None if buffer is None else buffer.clone() for buffer in live]

    def _same_shapes(self, live: list[Any]) -> bool:
        return len(self._copies) == len(live) and all(
            copy is not None
            and buffer is not None
            and (copy.shape, copy.dtype, copy.device) == (buffer.shape, buffer.dtype, buffer.device)
            for copy, buffer in zip(self._copies, live, strict=True)
        )

    @torch.no_grad()
    def settle(self) -> None:
        """After the first step: track only buffers that it changed; waits for the device."""
        if self._settled:
            return
        pairs = list(zip(self._places, self._copies, self._live(), strict=True))
        changed = [(place, copy) for place, copy, live in pairs if not _equal(copy, live)]
        self._places = [place for place, _ in changed]
        self._copies = [copy for _, copy in changed]
        self._settled, self.none = True, not changed

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved buffers."""
        for (module, name), copy in zip(self._places, self._copies, strict=False):
            live = module._buffers[name]
            if copy is None:
                module._buffers[name] = None
            elif live is None or live.shape != copy.shape:
                module._buffers[name] = copy.clone()
            else:
                live.copy_(copy)

    @torch.no_grad()
    def restore_where(self, found_inf: Tensor) -> None:
        """Restore them if `found_inf` (0-d) is not 0, without waiting for the device."""
        if self.none or not self._copies:
            return
        pairs = [
            (live, copy)
            for live, copy in zip(self._live(), self._copies, strict=True)
            if live is not None and copy is not None and live.shape == copy.shape
        ]
        bad = found_inf != 0
        for lives, copies in by_kind([live for live, _ in pairs], [copy for _, copy in pairs]):
            now = torch.cat([live.flatten() for live in lives])
            before = torch.cat([copy.flatten() for copy in copies])
            chosen = torch.where(bad.to(now.device), before, now)
            parts = torch.split(chosen, [live.numel() for live in lives])
            shaped = [part.view_as(live) for part, live in zip(parts, lives, strict=True)]
            torch._foreach_copy_(lives, shaped)


def by_kind(
    targets: Sequence[Tensor], sources: Sequence[Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The pairs, grouped by the targets' dtype and device; sources are moved to that device.

    torch's foreach kernels process mixed lists tensor by tensor. Call it without gradients.
    """
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        firsts, seconds = kinds.setdefault((target.dtype, target.device), ([], []))
        firsts.append(target)
        seconds.append(source.to(target.device))
    yield from kinds.values()


def copy_all(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy each value into its tensor, one launch per dtype and device."""
    for targets, sources in by_kind(into, values):
        torch._foreach_copy_(targets, sources)


def _equal(copy: Tensor | None, live: Tensor | None) -> bool:
    if copy is None or live is None:
        return copy is live
    return copy.shape == live.shape and torch.equal(copy, live)
