"""What an artefact's manifest says about serving it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.exporting.artefact import MANIFEST, SCHEMA, specs
from flatout.nouns.errors import UserError
from flatout.nouns.exported import TensorSpec

AGAIN = "export the model again: flatout export train.py"


@dataclass(frozen=True)
class ServedModel:
    """A verified model in its folder."""

    folder: Path
    name: str
    """The name of its class."""
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    files: dict[str, str]
    """Name -> SHA-256."""
    packages: dict[str, str]
    """The packages that load.py imports, with the versions used to measure it."""
    options: dict[str, Any]
    """Options of the backend, such as the names of inputs and outputs in the model's file."""
    batched: bool
    """Whether several requests can be served together."""
    best_batch: int
    """The batch size with the most rows per second."""
    most_rows: int
    """The largest batch that was verified or measured."""
    exact: bool
    on_gpu: bool


def read(folder: Path) -> ServedModel:
    """The model. Raises UserError if the folder holds none that this version of flatout knows."""
    path = folder / MANIFEST
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts.get("schema") != SCHEMA:
            raise UserError(
                f"{path} has schema {facts.get('schema')!r}; this flatout reads {SCHEMA}", AGAIN
            )
        return _model(folder.resolve(), facts)
    except OSError as error:
        raise UserError(
            f"{folder} holds no exported model: {path.name}: {error.strerror}",
            "give the folder that an export has written",
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} cannot be understood: {type(error).__name__}: {error}", AGAIN
        ) from error


def check(model: ServedModel) -> None:
    """Raise UserError for a file that differs from the verified one."""
    for name, wanted in model.files.items():
        path = model.folder / name
        if not path.resolve().is_relative_to(model.folder):
            raise UserError(f"the manifest names {name!r}, which is outside of {model.folder}")
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if found != wanted:
            raise UserError(f"{path} is not the file that was verified: {found[:12]}", AGAIN)


def _model(folder: Path, facts: dict[str, Any]) -> ServedModel:
    axes = {*facts["input_axes"], *facts["output_axes"]}
    points = (facts.get("measured") or {}).get("batches") or ()
    best = max(points, key=lambda point: float(point["samples_per_s"]), default=None)
    sizes = [*map(int, facts["batch_sizes"]), *(int(point["batch"]) for point in points)]
    return ServedModel(
        folder=folder,
        name=str(facts["model"]),
        backend=str(facts["backend"]),
        inputs=specs(facts["inputs"]),
        outputs=specs(facts["outputs"]),
        files={str(name): str(digest) for name, digest in facts["files"].items()},
        packages={str(name): str(version) for name, version in facts["packages"].items()},
        options=dict(facts["options"]),
        batched=bool(facts["batch_dynamic"]) and not facts.get("batch_matters") and axes == {0},
        best_batch=int(best["batch"]) if best else max(sizes, default=1),
        most_rows=max(sizes, default=1),
        exact=facts["precision"] == "exact",
        on_gpu=bool(facts.get("on_gpu")),
    )
