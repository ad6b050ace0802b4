"""Sharded tensors (FSDP2, tensor parallelism: DTensor) through torch.distributed.checkpoint.

Each rank writes its part, and any number of ranks reads it back: DCP finds the parts that overlap.
Of DCP's files only tensors are read, and its index with an unpickler that knows nothing but DCP's
own records: DCP itself would run whatever code an index names.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout_train.checkpoint.files import Files, file_entry
from flatout_train.checkpoint.ranks import Ranks
from flatout_train.checkpoint.states import MARK, is_sharded
from flatout_train.checkpoint.tracked import Tracked
from flatout_train.errors import CheckpointError

FOLDER = "shards"
_INDEX = ".metadata"
_RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
}
"""Module -> what DCP's index may name of it; and torch's dtypes."""


def save(shards: dict[str, Tensor], path: Path, ranks: Ranks) -> list[Files]:
    """Write this rank's parts under `path`; every rank calls it, and it fails on all or none.

    Returns what each rank wrote.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    writer = FileSystemWriter(path / FOLDER, sync_files=True)
    try:
        dcp_save(dict(shards), storage_writer=writer, process_group=ranks.writing)
    except CheckpointException as error:
        rank, (failed, _) = next(iter(error.failures.items()))
        if isinstance(failed, OSError):
            raise failed from error
        raise CheckpointError(f"sharded tensors, rank {rank}: {failed}") from error
    return ranks.together(lambda: _entries(path, ranks.rank), ranks.writing)


def _entries(path: Path, rank: int) -> Files:
    """Size and checksum of the files that this rank wrote."""
    own = [*(path / FOLDER).glob(f"__{rank}_*")]
    if rank == 0:
        own.append(path / FOLDER / _INDEX)
    return {f"{FOLDER}/{file.name}": file_entry(file) for file in own}


def load(
    states: dict[str, Any], currents: dict[str, Any], things: list[Tracked], path: Path, group: Any
) -> dict[str, Any]:
    """The states with their sharded tensors: sharded as those of this program are, or whole.

    `currents` are the states that the things have now. Every rank calls it.
    """
    shapes: dict[str, Tensor] = {}
    for one in things:
        _targets(states[one.name], currents[one.name], _params(one), shapes)
    if shapes:
        _read(shapes, path / FOLDER, group)
    return {
        one.name: _filled(states[one.name], currents[one.name], _params(one), shapes)
        for one in things
    }


def fill(state: Any, shards: dict[str, Tensor]) -> Any:
    """A staged state with its sharded tensors in their places."""
    return _filled(state, None, [], shards)


def _read(targets: dict[str, Tensor], path: Path, group: Any) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            with (Path(self.path) / _INDEX).open("rb") as file:
                return _Index(file).load()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(targets, storage_reader=Reader(path), process_group=group)
    except CheckpointException as error:
        rank, (failed, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"{path} cannot be loaded (rank {rank}): {failed}") from error


class _Index(pickle.Unpickler):
    """Reads DCP's index, and refuses whatever else a file may hold."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if self._is_known(module, name) else None
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in an index of tensors")
        return found

    @staticmethod
    def _is_known(module: str, name: str) -> bool:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        return dtype or name in _RECORDS.get(module, ())


def _params(one: Tracked) -> list[Tensor]:
    optimizer = one.optimizer()
    groups = optimizer.param_groups if optimizer is not None else []
    return [param for group in groups for param in group["params"]]


def _targets(saved: Any, current: Any, params: list[Tensor], found: dict[str, Tensor]) -> None:
    """For each sharded tensor in a saved state a tensor to read it into."""
    if isinstance(saved, dict) and MARK in saved:
        shape = torch.Size(saved["shape"])
        like = isinstance(current, Tensor) and current.shape == shape
        dtype = saved["dtype"]
        target = torch.empty_like(current, dtype=dtype) if like else torch.empty(shape, dtype=dtype)
        found[saved[MARK]] = target
        return
    for item, now in _pairs(saved, current, params):
        _targets(item, now, params, found)


def _filled(saved: Any, current: Any, params: list[Tensor], found: dict[str, Tensor]) -> Any:
    if isinstance(saved, dict) and MARK in saved:
        return found[saved[MARK]]
    if isinstance(saved, Tensor):
        matches = is_sharded(current) and current.shape == saved.shape
        return _sharded_like(saved, current) if matches else saved
    values = [_filled(item, now, params, found) for item, now in _pairs(saved, current, params)]
    if isinstance(saved, dict):
        filled = type(saved)(zip(saved, values, strict=True))
        if hasattr(saved, "__dict__"):
            vars(filled).update(vars(saved))  # a module's _metadata
        return filled
    return type(saved)(values) if type(saved) in (list, tuple) else saved


def _pairs(saved: Any, current: Any, params: list[Tensor]) -> list[tuple[Any, Any]]:
    """The items of a saved nest, each with what stands in its place now.

    A new optimizer has no state yet; there the parameter tells how its state is sharded.
    """
    if isinstance(saved, dict):
        now = current if isinstance(current, Mapping) else {}
        pairs = {key: (item, now.get(key)) for key, item in saved.items()}
        if {"state", "param_groups"} <= saved.keys() and not now.get("state") and params:
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            alike = dict(zip(numbers, params, strict=False))
            as_now = {
                number: dict.fromkeys(parts, alike.get(number))
                for number, parts in saved["state"].items()
            }
            pairs["state"] = saved["state"], as_now
        return list(pairs.values())
    if type(saved) in (list, tuple):
        items = current if isinstance(current, (list, tuple)) else []
        return [(item, items[i] if i < len(items) else None) for i, item in enumerate(saved)]
    return []


def _sharded_like(whole: Tensor, like: Any) -> Tensor:
    """The part of a whole tensor that this rank holds."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    part = whole
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        part = part.narrow(dim, offset, size)
    local = part.to(like.to_local().device, copy=True)
    made: Tensor = type(like)(local.contiguous(), like._spec, requires_grad=False)
    return made
