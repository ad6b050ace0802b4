"""Weights from a file, in any format that scripts save, without running code from the file."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from flatout_agent.attach import tracebacks
from flatout_agent.capture.refusal import CannotCapture

PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes that torch's and users' wrappers add to the names of weights."""
NESTS = ("model_state_dict", "state_dict", "model_state", "model", "module", "net", "network")
NAMES = ("model.safetensors", "pytorch_model.bin", "model.pt", "checkpoint.pt")
MOST_NAMED = 6
SAFE = frozenset({
    "argparse.Namespace", "collections.OrderedDict", "collections.defaultdict", "numpy.dtype",
    "numpy.ndarray", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core")
      for name in ("scalar", "_reconstruct")),
})  # fmt: skip
SAFE_MODULES = ("numpy.dtypes", "torch.nn.functional")
"""A module refers to its activation."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
State = dict[str, torch.Tensor]


def load(model: nn.Module, path: str, key: str = "") -> list[str]:
    """Put the weights of a checkpoint into the model; returns notes.

    key: the entry of the checkpoint that holds them ("ema"). Raises CannotCapture if they do not
    fit.
    """
    state = _state(_read(path), path, key)
    fitting, prefix, notes = _fitting(state, model, path)
    _check(model, fitting, path)
    model.load_state_dict(fitting, strict=False)
    if prefix:
        notes.append(f"names in {os.path.basename(path)} begin with {prefix!r}")  # noqa: PTH119
    return notes


def _read(path: str) -> Any:
    if os.path.isdir(path):  # noqa: PTH112
        return _read_folder(path)
    if not os.path.exists(path):  # noqa: PTH110
        raise CannotCapture(f"there is no checkpoint {path}", "name the file after --weights")
    if path.endswith(".safetensors"):
        return _safetensors(path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        names = []
    known = [_known(name) for name in names]
    strange = [name for name, found in zip(names, known, strict=True) if found is None]
    if strange:
        raise CannotCapture(
            f"{path} holds objects of classes that the script has not loaded: "
            f"{', '.join(strange[:MOST_NAMED])}",
            "save the weights alone: torch.save(model.state_dict(), path)",
        )
    try:
        with torch.serialization.safe_globals(list(zip(known, names, strict=True))):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CannotCapture(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: "
            f"{tracebacks.first_line(error)[:160]})",
            "save the weights alone: torch.save(model.state_dict(), path)",
        ) from error


def _known(name: str) -> Any:
    """The object that the file names, if reading it only creates a module or a number.

    None if the program has not loaded it, or it is something else.
    """
    owner, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(owner), attribute, None)
    if name in SAFE or owner in SAFE_MODULES:
        return found
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def _read_folder(path: str) -> Any:
    for name in sorted(os.listdir(path)):  # noqa: PTH208
        if name.endswith(".index.json"):
            with open(os.path.join(path, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                files = sorted(set(json.load(file)["weight_map"].values()))
            merged: State = {}
            for part in files:
                merged.update(_read(os.path.join(path, part)))  # noqa: PTH118
            return merged
    for name in NAMES:
        file_path = os.path.join(path, name)  # noqa: PTH118
        if os.path.isfile(file_path):  # noqa: PTH113
            return _read(file_path)
    raise CannotCapture(
        f"no weights in the folder {path}", f"it should hold one of {', '.join(NAMES)}"
    )


def _safetensors(path: str) -> State:
    """The format is eight bytes of length, a JSON header, and the tensors' bytes."""
    with open(path, "rb") as file:  # noqa: PTH123
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    state: State = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise CannotCapture(f"{path}: {name} is of type {entry['dtype']}, which is not known")
        if begin == end:
            state[name] = torch.empty(entry["shape"], dtype=dtype)
            continue
        flat = torch.frombuffer(data[begin:end], dtype=dtype)
        state[name] = flat.reshape(entry["shape"]).clone()
    return state


def _state(read: Any, path: str, key: str) -> State:
    """The state dict in the object that was read."""
    if key:
        if not isinstance(read, Mapping) or key not in read:
            keys = ", ".join(map(str, read)) if isinstance(read, Mapping) else type(read).__name__
            raise CannotCapture(f"{path} has no entry {key!r}", f"it holds: {keys[:400]}")
        read = read[key]
        inner = _state_in(read)
        return inner if inner is not None else _refuse_state(read, path)
    found = _state_in(read)
    return found if found is not None else _refuse_state(read, path)


def _state_in(read: Any) -> State | None:
    if isinstance(read, nn.Module):
        return dict(read.state_dict())
    if not isinstance(read, Mapping):
        return None
    state = {str(name): value for name, value in read.items() if isinstance(value, torch.Tensor)}
    if len(state) == len(read) and state:
        return state
    for name in NESTS:
        if name in read and (inner := _state_in(read[name])) is not None:
            return inner
    if "shadow_params" in read:
        return None
    return state or None


def _refuse_state(read: Any, path: str) -> State:
    holds = ", ".join(map(str, read)) if isinstance(read, Mapping) else type(read).__name__
    raise CannotCapture(
        f"no state dict was found in {path}; it holds: {holds[:400]}",
        "name the entry that holds the weights: --weights PATH#ENTRY",
    )


def _fitting(state: State, model: nn.Module, path: str) -> tuple[State, str, list[str]]:
    """The entries of the state that belong to the model, under its names, and the prefix that they
    had.
    """
    wanted = list(model.state_dict())
    state = {name.replace("_orig_mod.", ""): value for name, value in state.items()}
    if not wanted:
        return {}, "", []
    # The prefix that the checkpoint adds to the model's own names, under which most of them
    # exist.
    names = list(state)
    ends = {f"{name[: -len(own)]}" for own in wanted[:8] for name in names if name.endswith(own)}
    usual = [prefix + more for prefix in ("", *PREFIXES) for more in ("", *PREFIXES)]
    there = set(names)

    def hits(prefix: str) -> tuple[int, bool, int]:
        found = sum(prefix + own in there for own in wanted)
        return found, "ema" not in prefix.lower(), -len(prefix)

    prefix = max({*ends, *usual}, key=hits)
    fitting = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    others = [name for name in state if not name.startswith(prefix)]
    notes = []
    if others:
        named = ", ".join(others[:MOST_NAMED])
        notes.append(f"{len(others)} entries of {path} belong to something else: {named}")
    return fitting, prefix, notes


def _check(model: nn.Module, state: State, path: str) -> None:
    own = model.state_dict(keep_vars=True)
    given = {id(own[name]) for name in state if name in own}
    missing = [
        name
        for name, tensor in own.items()
        if name not in state
        and id(tensor) not in given  # tied: it exists under another name
        and not name.endswith("num_batches_tracked")
    ]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} {list(state[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    kinds = (("missing", missing), ("not in the model", unexpected), ("of another shape", shapes))
    wrong = [f"{what}: {_list(names)}" for what, names in kinds if names]
    if wrong:
        raise CannotCapture(
            f"the weights of {path} are not those of {type(model).__name__}: {'; '.join(wrong)}",
            "let the script build the model that the checkpoint was saved from (same arguments),"
            " or name the entry: --weights PATH#ENTRY",
        )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
