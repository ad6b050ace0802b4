"""What an artefact's manifest says of serving it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.exported import TensorSpec

SCHEMA = "flatout.artefact/1"


@dataclass(frozen=True)
class Artefact:
    """A verified model in its folder."""

    folder: Path
    model: str
    """Its class."""
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    files: dict[str, str]
    """Name -> SHA-256."""
    packages: dict[str, str]
    """What load.py imports, with the versions that were measured."""
    python: str
    options: dict[str, Any]
    """Of the backend: among them the names of inputs and outputs within the model's file."""
    batched: bool
    """Whether requests can go through it together."""
    best_batch: int
    exact: bool
    device: str
    """cpu, cuda ..."""
    threads: int
    """It was measured with so many."""

    @property
    def needs_torch(self) -> bool:
        """Whether load.py imports torch."""
        return "torch" in self.packages


def read(folder: Path) -> Artefact:
    """The artefact. Raises UserError where the folder holds none that this flatout knows."""
    path = folder / "manifest.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts.get("schema") != SCHEMA:
            raise UserError(
                f"{path} is of the form {facts.get('schema')!r}; this flatout knows {SCHEMA}",
                "export the model again: flatout export train.py",
            )
        return _artefact(folder.resolve(), facts)
    except OSError as error:
        raise UserError(
            f"{folder} is no artefact: {error.strerror}: {path.name}",
            "give the folder that flatout export has written",
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            "export the model again: flatout export train.py",
        ) from error


def check(artefact: Artefact) -> None:
    """Raise UserError for a file that is not the one that was verified."""
    for name, wanted in artefact.files.items():
        path = artefact.folder / name
        if not path.resolve().is_relative_to(artefact.folder):
            raise UserError(f"the manifest names {name!r}, which is outside of {artefact.folder}")
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if found != wanted:
            raise UserError(
                f"{path} is not the file that was verified: its SHA-256 is {found}",
                "export the model again: flatout export train.py",
            )


def _artefact(folder: Path, facts: dict[str, Any]) -> Artefact:
    inputs, outputs = _tensors(facts["inputs"]), _tensors(facts["outputs"])
    first = {spec.shape[:1] for spec in (*inputs, *outputs)}
    sizes = [int(size) for size in facts.get("batch_sizes") or [1]]
    return Artefact(
        folder=folder,
        model=str(facts["model"]),
        backend=str(facts["backend"]),
        inputs=inputs,
        outputs=outputs,
        files={str(name): str(digest) for name, digest in facts["files"].items()},
        packages={str(name): str(version) for name, version in facts["packages"].items()},
        python=str(facts.get("python") or "3.11"),
        options=dict(facts.get("options") or {}),
        batched=bool(facts.get("batch_dynamic")) and first == {(None,)},
        best_batch=int(facts.get("best_batch") or max(sizes)),
        exact=facts.get("precision") == "exact",
        device=str(facts.get("device") or "cpu"),
        threads=int(facts.get("threads") or 1),
    )


def _tensors(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(row["name"], row["dtype"], tuple(row["shape"])) for row in rows)
