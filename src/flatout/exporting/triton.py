"""A model repository for Triton Inference Server."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.exporting import artefact
from flatout.exporting.artefact import MANIFEST, SCHEMA, specs
from flatout.nouns.errors import UserError
from flatout.nouns.exported import TensorSpec

MINE = "# flatout export --triton"
TYPES = {
    "bool": "TYPE_BOOL",
    "bfloat16": "TYPE_BF16",
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
}

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


@dataclass(frozen=True)
class _Backend:
    """How Triton runs the builds of one of our backends."""

    lines: tuple[str, ...]
    files: tuple[str, ...]
    """Files of the artefact; Triton finds the first one under `found_as`."""
    found_as: str
    batches: bool
    """Whether Triton may join requests."""
    ordinal: bool = False
    """Whether tensors are named by position."""


BACKENDS = {
    "onnxruntime": _Backend(
        ('backend: "onnxruntime"',), ("model.onnx", "model.onnx.data"), "model.onnx", batches=True
    ),
    # With max_batch_size it takes only that batch size, or fills up smaller ones.
    "openvino": _Backend(
        ('backend: "openvino"',), ("model.xml", "model.bin"), "model.xml", batches=False
    ),
    "tensorrt": _Backend(('backend: "tensorrt"',), ("model.plan",), "model.plan", batches=True),
    # Its documentation says that batching is not complete for such packages.
    "aoti": _Backend(
        ('backend: "pytorch"', 'platform: "torch_aoti"'),
        ("model.pt2",),
        "model.pt2",
        batches=False,
        ordinal=True,
    ),
}
BF16 = (
    "Triton's OpenVINO backend cannot name a precision: on a CPU with bfloat16 (AMX), OpenVINO "
    "computes in it by itself, which this model was not verified with"
)
AOTI = (
    "Triton loads such packages from 26.05 on, and its container must have PyTorch {torch}, with "
    "which this one was compiled, and a CPU or GPU of the same kind"
)


@dataclass(frozen=True)
class Repository:
    """A model repository that was written."""

    path: Path
    """Triton's argument for --model-repository."""
    model: str
    """The model's name in it."""
    notes: tuple[str, ...]
    """How it differs from the measured artefact."""


def write(folder: Path, out: Path | None = None) -> Repository:
    """Write the artefact as a model repository, by default into its folder `triton`.

    Raises UserError for a backend without a counterpart in Triton, and if something else is in
    the way.
    """
    model = read_served(folder)
    backend = BACKENDS.get(model.backend)
    if backend is None:
        raise UserError(
            f"Triton has no backend for {model.backend}",
            "start from its serve.py, or export for one that Triton has: "
            + "flatout export "
            + " ".join(f"--only {name}" for name in BACKENDS),
        )
    check_served(model)
    name = re.sub(r"[^\w.-]", "_", model.name, flags=re.ASCII)
    repository = out if out is not None else model.folder / "triton"
    place = _cleared(repository / name)
    _copy(model, backend, place / "1")
    notes = _notes(model)
    (place / "config.pbtxt").write_text(_config(model, backend, name, notes), encoding="utf-8")
    if repository.resolve().is_relative_to(model.folder):
        files = [path.resolve() for path in place.rglob("*") if path.is_file()]
        artefact.note_served(model.folder, files)
    return Repository(repository, name, notes)


def _cleared(place: Path) -> Path:
    """The place of the model, empty. Raises UserError for a folder that is not ours to empty."""
    if place.exists():
        config = place / "config.pbtxt"
        if not config.is_file() or not config.read_text(encoding="utf-8").startswith(MINE):
            raise UserError(
                f"{place} is there already, and flatout did not write it",
                "remove it, or give another folder",
            )
        shutil.rmtree(place)
    place.mkdir(parents=True)
    return place


def _copy(model: ServedModel, backend: _Backend, version: Path) -> None:
    first, *others = backend.files
    if first not in model.files:
        raise UserError(f"{model.folder} has no {first}, which {model.backend} builds", AGAIN)
    others = [name for name in others if name in model.files]
    if model.backend == "onnxruntime" and others:  # then Triton wants a folder of that name
        version = version / backend.found_as
    version.mkdir(parents=True)
    shutil.copyfile(model.folder / first, version / backend.found_as)
    for name in others:
        shutil.copyfile(model.folder / name, version / name)


def _notes(model: ServedModel) -> tuple[str, ...]:
    if model.backend == "openvino" and model.exact:
        return (BF16,)
    if model.backend == "aoti":
        return (AOTI.format(torch=model.packages.get("torch", "of the same version")),)
    return ()


def _config(model: ServedModel, backend: _Backend, name: str, notes: tuple[str, ...]) -> str:
    batched = model.batched and backend.batches
    lines = [
        MINE,
        *(f"# note: {note}" for note in notes),
        f"name: {_quoted(name)}",
        *backend.lines,
        f"max_batch_size: {model.most_rows if batched else 0}",
    ]
    for kind, tensors in (("input", model.inputs), ("output", model.outputs)):
        names = model.options.get(f"{kind}s") or [spec.name for spec in tensors]
        for place, (known, spec) in enumerate(zip(names, tensors, strict=True)):
            ordinal = f"{kind.upper()}__{place}"
            lines += _tensor(kind, ordinal if backend.ordinal else known, spec, batched)
    if batched and model.best_batch > 1:
        lines += [
            "dynamic_batching {",
            f"  preferred_batch_size: [ {model.best_batch} ]",
            "  max_queue_delay_microseconds: 1000",
            "}",
        ]
    lines.append(f"instance_group [ {{ count: 1 kind: KIND_{'GPU' if model.on_gpu else 'CPU'} }} ]")
    return "\n".join([*lines, ""])


def _tensor(kind: str, name: str, spec: TensorSpec, batched: bool) -> list[str]:
    if spec.dtype not in TYPES:
        raise UserError(f"{kind} {spec.name} is {spec.dtype}, a type that Triton does not have")
    shape = spec.shape[1:] if batched else spec.shape
    dims = ", ".join("-1" if size is None else str(size) for size in shape)
    # Triton takes no empty dims: one number per row is declared as one element.
    scalar = [] if shape else ["  reshape { shape: [ ] }"]
    return [
        f"{kind} {{",
        f"  name: {_quoted(name)}",
        f"  data_type: {TYPES[spec.dtype]}",
        f"  dims: [ {dims or '1'} ]",
        *scalar,
        "}",
    ]


def _quoted(text: str) -> str:
    """A string in protocol buffers' text format."""
    signs = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{"".join(signs)}"'


def read_served(folder: Path) -> ServedModel:
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


def check_served(model: ServedModel) -> None:
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
