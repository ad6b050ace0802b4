"""A model repository of Triton Inference Server."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from flatout.exporting.serving.artefact import Artefact, check, read
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


@dataclass(frozen=True)
class _Backend:
    """How Triton runs what one of our backends builds."""

    lines: tuple[str, ...]
    file: str
    """As Triton looks for it."""
    batches: bool
    """Whether Triton may put requests together."""
    ordinal: bool = False
    """Tensors are named by their place."""


BACKENDS = {
    "onnxruntime": _Backend(('backend: "onnxruntime"',), "model.onnx", batches=True),
    # With max_batch_size it takes that one batch size alone, or fills up each smaller one.
    "openvino": _Backend(('backend: "openvino"',), "model.xml", batches=False),
    "tensorrt": _Backend(('backend: "tensorrt"',), "model.plan", batches=True),
    # Its documentation says that batching is not completed for such packages.
    "aoti": _Backend(
        ('backend: "pytorch"', 'platform: "torch_aoti"'), "model.pt2", batches=False, ordinal=True
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
    """What Triton is given: --model-repository."""
    model: str
    """The model's name in it."""
    notes: tuple[str, ...]
    """What differs from the artefact as it was measured."""


def triton(folder: Path, out: Path | None = None) -> Repository:
    """Write the artefact as a model repository, into its folder `triton` unless told otherwise.

    Raises UserError for a backend that Triton has no counterpart of, and where something else is in
    the way.
    """
    artefact = read(folder)
    backend = BACKENDS.get(artefact.backend)
    if backend is None:
        raise UserError(
            f"Triton has no backend for {artefact.backend}",
            f"export with one that it has: flatout export --backends {','.join(BACKENDS)}; "
            "or use the artefact's own server or --kserve with its container",
        )
    check(artefact)
    name = re.sub(r"[^\w.-]", "_", artefact.model, flags=re.ASCII)
    repository = out if out is not None else artefact.folder / "triton"
    place = _cleared(repository / name)
    _copy(artefact, backend, place / "1")
    notes = _notes(artefact)
    (place / "config.pbtxt").write_text(_config(artefact, backend, name, notes), encoding="utf-8")
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


def _copy(artefact: Artefact, backend: _Backend, version: Path) -> None:
    names = [name for name in artefact.files if name.startswith(backend.file.split(".")[0] + ".")]
    if backend.file not in names:
        raise UserError(
            f"the artefact of {artefact.backend} has no {backend.file}",
            "export the model again: flatout export train.py",
        )
    if artefact.backend == "onnxruntime" and len(names) > 1:  # weights in a file of their own
        version = version / backend.file
    version.mkdir(parents=True)
    for name in names:
        shutil.copy2(artefact.folder / name, version / name)


def _notes(artefact: Artefact) -> tuple[str, ...]:
    if artefact.backend == "openvino" and artefact.exact:
        return (BF16,)
    if artefact.backend == "aoti":
        return (AOTI.format(torch=artefact.packages.get("torch", "of the same version")),)
    return ()


def _config(artefact: Artefact, backend: _Backend, name: str, notes: tuple[str, ...]) -> str:
    batched = artefact.batched and backend.batches
    gpu = artefact.backend == "tensorrt" or artefact.device != "cpu"
    lines = [
        MINE,
        *(f"# note: {note}" for note in notes),
        f"name: {_quoted(name)}",
        *backend.lines,
        f"max_batch_size: {artefact.best_batch if batched else 0}",
    ]
    for kind, specs in (("input", artefact.inputs), ("output", artefact.outputs)):
        for place, spec in enumerate(specs):
            known = spec.name if not backend.ordinal else f"{kind.upper()}__{place}"
            lines += _tensor(kind, known, spec, batched)
    if batched:
        lines.append("dynamic_batching { max_queue_delay_microseconds: 1000 }")
    lines.append(f"instance_group [ {{ count: 1 kind: KIND_{'GPU' if gpu else 'CPU'} }} ]")
    return "\n".join([*lines, ""])


def _tensor(kind: str, name: str, spec: TensorSpec, batched: bool) -> list[str]:
    if spec.dtype not in TYPES:
        raise UserError(f"{kind} {spec.name} is {spec.dtype}, a type that Triton does not have")
    shape = spec.shape[1:] if batched else spec.shape
    dims = ", ".join("-1" if size is None else str(size) for size in shape)
    # Triton takes no empty dims: a number for each row goes as one of one element.
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
    """A string of the text format of protocol buffers."""
    signs = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{"".join(signs)}"'
