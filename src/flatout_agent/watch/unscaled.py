"""The loss that a gradient scaler was given: `backward` runs on what the scaler makes of it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from flatout_agent.attach.replacing import replaced


class UnscaledLosses:
    """Remembers the last loss that was scaled, until `close`."""

    def __init__(self) -> None:
        self.enabled = False
        """Whether a scaler was used that is enabled."""
        self.last: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None
        """What the scaler gave, and the value that it was given."""
        # torch before 2.3 has the class for CUDA only; today the two are one.
        scalers: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        original = scalers.scale

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not torch.compiler.is_compiling():
                self.enabled = self.enabled or scaler.is_enabled()
                if isinstance(scaled, torch.Tensor) and isinstance(outputs, torch.Tensor):
                    self.last = weakref.ref(scaled), outputs.detach()
            return scaled

        self.close = replaced(scalers, "scale", scale)

    def of(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss before it was scaled, or this one if it was not."""
        return self.last[1] if self.last is not None and self.last[0]() is loss else loss
