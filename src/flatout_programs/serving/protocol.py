"""Requests and answers of the Open Inference Protocol v2, with tensors as JSON or binary.

Pure functions: whatever a client sends ends in an InferRequest or an HttpRefusal.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

import numpy as np

from flatout_programs.serving.saying import HttpRefusal

Array = np.ndarray[Any, Any]
MOST_JSON = 16 * 2**20
"""JSON takes ten times its size in memory; larger tensors are sent binary."""
DATATYPES = {
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bool": "BOOL",
}
"""Name of a type in torch and numpy -> its name in the protocol."""
TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""Kind of a numpy type -> what its values are in JSON."""


@dataclass(frozen=True)
class Spec:
    """An input or output of the model; None in a shape: any size."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @property
    def datatype(self) -> str:
        return DATATYPES[self.dtype.name]

    @property
    def described(self) -> dict[str, Any]:
        sizes = [-1 if size is None else size for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": sizes}


def specs(rows: list[dict[str, Any]]) -> list[Spec]:
    """Those of the manifest. Raises ValueError for a type that the protocol lacks."""
    strange = [f"{row['name']} ({row['dtype']})" for row in rows if row["dtype"] not in DATATYPES]
    if strange:
        raise ValueError(f"the protocol has no type for {', '.join(strange)}")
    return [Spec(row["name"], np.dtype(row["dtype"]), tuple(row["shape"])) for row in rows]


@dataclass
class InferRequest:
    """Arrays in the order of the model's inputs, and (output, binary?) in the client's."""

    arrays: list[Array]
    wanted: list[tuple[str, bool]]
    id: str | None = None


def parse(
    body: bytes, json_size: int | None, inputs: list[Spec], outputs: list[Spec]
) -> InferRequest:
    """The request in a body. Raises HttpRefusal for whatever does not fit the model."""
    size = len(body) if json_size is None else json_size
    if size > len(body):
        raise HttpRefusal(
            400, f"Inference-Header-Content-Length is {size}, the body {len(body)} bytes"
        )
    if size > MOST_JSON:
        raise HttpRefusal(
            413, f"{size} bytes of JSON; at most {MOST_JSON}: send the tensors binary"
        )
    message = document(body[:size])
    rows = objects(message.get("inputs"), "inputs")
    names, known = [row.get("name") for row in rows], [spec.name for spec in inputs]
    if len(names) != len(known) or any(names.count(name) != 1 for name in known):
        raise HttpRefusal(400, f"the inputs are {shown(names)}; the model has {known}")
    found, rest = {}, memoryview(body)[size:]
    for row in rows:
        spec = inputs[known.index(row["name"])]
        shape = checked_shape(row, spec)
        length = parameters(row, f"input {spec.name}").get("binary_data_size")
        if length is None:
            found[spec.name] = from_json(row, spec, shape)
        else:
            found[spec.name] = from_bytes(length, rest, spec, shape)
            rest = rest[length:]
    if len(rest):
        raise HttpRefusal(400, f"{len(rest)} bytes are left after the last tensor")
    identity = message.get("id")
    if identity is not None and not isinstance(identity, str):
        raise HttpRefusal(400, "id: a string is needed")
    return InferRequest([found[name] for name in known], wanted(message, outputs), identity)


def document(text: bytes) -> dict[str, Any]:
    def no_number(name: str) -> None:
        raise ValueError(f"{name} is no number in JSON")

    try:
        found = json.loads(text.decode("utf-8"), parse_constant=no_number)
    except RecursionError:
        raise HttpRefusal(400, "the body is not JSON: nested too deeply") from None
    except ValueError as error:
        raise HttpRefusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HttpRefusal(400, "the body is not a JSON object")
    return found


def objects(found: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise HttpRefusal(400, f"{where}: a list of objects is needed")
    return found


def parameters(row: dict[str, Any], where: str) -> dict[str, Any]:
    found = row.get("parameters", {})
    if not isinstance(found, dict):
        raise HttpRefusal(400, f"{where}: parameters: an object is needed")
    return found


def checked_shape(row: dict[str, Any], spec: Spec) -> tuple[int, ...]:
    where, shape = f"input {spec.name}", row.get("shape")
    if row.get("datatype") != spec.datatype:
        raise HttpRefusal(
            400, f"{where}: datatype {shown(row.get('datatype'))}; it is {spec.datatype}"
        )
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise HttpRefusal(400, f"{where}: shape: a list of positive integers is needed")
    pairs = zip(spec.shape, shape, strict=True)
    if len(shape) != len(spec.shape) or any(size not in (None, given) for size, given in pairs):
        needed = spec.described["shape"]
        raise HttpRefusal(
            400, f"{where}: shape {shown(shape)}; it is {needed}, where -1 is any size"
        )
    return tuple(shape)


def from_json(row: dict[str, Any], spec: Spec, shape: tuple[int, ...]) -> Array:
    where, data = f"input {spec.name}", row.get("data")
    if not isinstance(data, list):
        raise HttpRefusal(400, f"{where}: neither data nor binary_data_size")
    try:
        # As objects first: numpy would widen every element to the longest string among them.
        array = np.array(data, dtype=object)
    except ValueError:
        raise HttpRefusal(400, f"{where}: data is no regular array") from None
    if not {type(value) for value in array.flat} <= TYPES[spec.dtype.kind]:
        raise HttpRefusal(400, f"{where}: data is no regular array of {spec.datatype}")
    if array.shape not in (shape, (math.prod(shape),)):
        raise HttpRefusal(400, f"{where}: data has shape {array.shape}, not {shape} nor flat")
    return cast(array, spec, where).reshape(shape)


def cast(array: Array, spec: Spec, where: str) -> Array:
    """Values of JSON as the input's type."""
    try:
        if spec.dtype.kind == "f":
            with np.errstate(over="ignore"):
                found = array.astype(np.float64).astype(spec.dtype)
            fits = bool(np.isfinite(found).all())
        else:
            found = array.astype(spec.dtype)
            fits = spec.dtype.kind == "b" or bool((found == array).all())
    except (OverflowError, ValueError):
        fits = False
    if not fits:
        raise HttpRefusal(400, f"{where}: data is out of the range of {spec.datatype}")
    return found


def from_bytes(size: Any, rest: memoryview, spec: Spec, shape: tuple[int, ...]) -> Array:
    needed = math.prod(shape) * spec.dtype.itemsize
    if type(size) is not int or size != needed or size > len(rest):
        text = f"input {spec.name}: binary_data_size is {shown(size)}, with {len(rest)} bytes left"
        raise HttpRefusal(400, f"{text}; its shape and type need {shown(needed)}")
    array = np.frombuffer(rest[:size], spec.dtype.newbyteorder("<"))
    if spec.dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise HttpRefusal(400, f"input {spec.name}: a BOOL is a byte 0 or 1")
    return array.astype(spec.dtype).reshape(shape)  # a copy: aligned, and may be written to


def wanted(message: dict[str, Any], outputs: list[Spec]) -> list[tuple[str, bool]]:
    every = parameters(message, "request").get("binary_data_output") is True
    rows = objects(message.get("outputs", []), "outputs")
    known, names = [spec.name for spec in outputs], [row.get("name") for row in rows]
    if any(name not in known or names.count(name) > 1 for name in names[: len(known) + 1]):
        raise HttpRefusal(400, f"the outputs are {shown(names)}; the model has {known}")
    asked = [parameters(row, "outputs").get("binary_data", every) is True for row in rows]
    return [(str(name), binary) for name, binary in zip(names, asked, strict=True)] or [
        (name, every) for name in known
    ]


def answer(
    name: str, request: InferRequest, arrays: dict[str, Array]
) -> tuple[bytes, dict[str, str]]:
    """Body and headers. Raises HttpRefusal where JSON cannot carry what the model computed."""
    rows: list[dict[str, Any]] = []
    chunks = [b""]
    for output, binary in request.wanted:
        array = arrays[output]
        row: dict[str, Any] = {
            "name": output,
            "datatype": DATATYPES[array.dtype.name],
            "shape": [*array.shape],
        }
        if binary:
            chunks.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            row["parameters"] = {"binary_data_size": len(chunks[-1])}
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            text = f"output {output} holds NaN or infinity, which JSON lacks"
            raise HttpRefusal(500, f"{text}: ask for it with binary_data")
        else:
            row["data"] = array.ravel().tolist()
        rows.append(row)
    message = {"model_name": name, "model_version": "1", "outputs": rows}
    if request.id is not None:
        message["id"] = request.id
    chunks[0] = json.dumps(message).encode()
    if len(chunks) == 1:
        return chunks[0], {"Content-Type": "application/json"}
    size = {"Inference-Header-Content-Length": str(len(chunks[0]))}
    return b"".join(chunks), {"Content-Type": "application/octet-stream", **size}
