"""The capture folder: everything that later processes need of a model, without the user's code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.capture.program import ModelProgram
from flatout_agent.capture.rows import Rows, Tensors

SCHEMA = "flatout.capture/1"
PROGRAM, SAMPLES, FACTS = "model.pt2", "samples.pt", "capture.json"


@dataclass(frozen=True)
class CaptureFacts:
    """A model that was captured."""

    folder: str
    model: str
    """Its class."""
    source: str
    """Source of the inputs: evaluation, training or library."""
    parameters: int
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    batch_sizes: tuple[int, ...]
    batch_dynamic: bool
    weights: str
    metric: dict[str, Any] | None
    notes: tuple[str, ...]
    samples: int


def write(
    folder: str,
    program: ModelProgram,
    samples: Sequence[Tensors],
    outputs: Sequence[Tensors],
    targets: Sequence[torch.Tensor | None],
    captured: CaptureFacts,
) -> None:
    """Write all three files, `capture.json` last: if it exists, the others are complete."""
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    facts_path = os.path.join(folder, FACTS)  # noqa: PTH118
    if os.path.exists(facts_path):  # noqa: PTH110
        os.remove(facts_path)  # noqa: PTH107
    torch.export.save(program.exported, os.path.join(folder, PROGRAM))  # noqa: PTH118
    document = {"inputs": list(samples), "outputs": list(outputs), "targets": list(targets)}
    torch.save(document, os.path.join(folder, SAMPLES))  # noqa: PTH118
    facts = wire.plain(captured)
    del facts["folder"], facts["samples"]
    text = json.dumps({"schema": SCHEMA, **facts, "torch": str(torch.__version__)}, indent=2)
    with open(facts_path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text + "\n")


def described(
    names: Sequence[str], tensors: Tensors, dynamic: Sequence[frozenset[int]]
) -> tuple[dict[str, Any], ...]:
    """Name, type and shape of each; dynamic dimensions are None."""
    return tuple(
        {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": [None if at in of else int(n) for at, n in enumerate(tensor.shape)],
        }
        for name, tensor, of in zip(names, tensors, dynamic, strict=True)
    )


def output_dims(
    outputs: Sequence[Tensors], by_rows: Rows | None, batch_dynamic: bool
) -> list[frozenset[int]]:
    """The dimensions of the outputs that varied, including the batch's."""
    first = outputs[0]
    return [
        frozenset(
            dim
            for dim in range(tensor.dim())
            if any(other[at].shape[dim] != tensor.shape[dim] for other in outputs)
            or (batch_dynamic and by_rows is not None and by_rows.outputs[at] == dim)
        )
        for at, tensor in enumerate(first)
    ]


def batch_sizes(samples: Sequence[Tensors], by_rows: Rows | None) -> tuple[int, ...]:
    """The observed sizes."""
    if by_rows is not None:
        return tuple(sorted({by_rows.count(sample) for sample in samples}))
    firsts = (next((t for t in sample if t.dim()), None) for sample in samples)
    return tuple(sorted({int(tensor.shape[0]) for tensor in firsts if tensor is not None}))
