"""Interruptions between a program's training steps: saving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flatout_agent.attach.replacing import replaced


def watch_saving(
    saved: Callable[[], None], written: Callable[[Any], None] | None = None
) -> Callable[[], None]:
    """Call `saved` before the program saves, and `written` with the file after it has.

    Returns the undo function.
    """
    original = torch.save

    def save(*args: Any, **kwargs: Any) -> Any:
        saved()
        result = original(*args, **kwargs)
        if written is not None:
            written(args[1] if len(args) > 1 else kwargs.get("f"))
        return result

    save.__wrapped__ = original  # type: ignore[attr-defined]  # functions take attributes
    return replaced(torch, "save", save)
