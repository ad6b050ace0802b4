"""`export()`: a model with real batches as a capture folder, which `flatout export` builds from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from flatout_agent.capture.calls import SeenCall, copied
from flatout_agent.capture.capture import Wanted, capture
from flatout_agent.capture.folder import CaptureFacts
from flatout_agent.capture.refusal import CannotCapture
from flatout_train.errors import UsageError


def export(
    model: torch.nn.Module, samples: Iterable[Any], folder: str | Path | None = None
) -> CaptureFacts:
    """Capture a trained model for `flatout export --capture FOLDER`.

    samples: real batches as the model is called with them: a tensor, a tuple or list of arguments,
    or a dict of named arguments. Give 64 rows or more, 300 for int8: results are compared on them.
    folder: it is created; by default a new one below the folder for temporary files.

    The model stays as it is: a copy is exported, in evaluation mode, on the CPU. Raises UsageError
    if it cannot be exported, with the line that prevents it and the remedy.
    """
    calls = [_call(sample) for sample in samples]
    if not calls:
        raise UsageError("export() was given no samples: give it some real batches")
    place = str(folder) if folder is not None else tempfile.mkdtemp(prefix="flatout-capture-")
    try:
        return capture(model, calls, Wanted(place, "library"))
    except CannotCapture as refused:
        cure = f"; {refused.cure}" if refused.cure else ""
        raise UsageError(
            f"{type(model).__name__} cannot be exported: {refused.reason}{cure}"
        ) from refused


def _call(sample: Any) -> SeenCall:
    own = copied(sample)
    if isinstance(own, Mapping):
        return SeenCall((), {str(name): value for name, value in own.items()})
    return SeenCall(tuple(own) if isinstance(own, list | tuple) else (own,), {})
