"""Sharded tensors (FSDP2, tensor parallelism: DTensor) through torch.distributed.checkpoint.

Each rank writes its part, and any number of ranks can read it back: DCP finds the overlapping
parts.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout_train.checkpoint.ranks import CheckpointRanks
from flatout_train.checkpoint.states import MARK, is_sharded
from flatout_train.checkpoint.tracked import Tracked
from flatout_train.errors import CheckpointError

FOLDER = "shards"


def save(shards: dict[str, Tensor], path: Path, ranks: CheckpointRanks) -> None:
    """Write this rank's parts under `path`; every rank calls it, and it fails on all or none.

    Raises CheckpointError or OSError.
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


def problem(path: Path, rank: int, size: int) -> str | None:
    """What is wrong with this rank's share of the parts, or None.

    DCP writes each part by torch.save, which keeps a checksum of all that it writes.
    """
    folder = path / FOLDER
    if not folder.exists():
        return None
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        parts: Any = FileSystemReader(folder).read_metadata().storage_data
        for part in list(parts.values())[rank::size]:
            with (folder / part.relative_path).open("rb") as file:
                file.seek(part.offset)
                with zipfile.ZipFile(io.BytesIO(file.read(part.length))) as archive:
                    if archive.testzip() is not None:
                        return f"{FOLDER}/{part.relative_path} is damaged"
    except Exception as error:
        return f"{FOLDER} cannot be read ({error})"
    return None


def load(
    states: dict[str, Any], currents: dict[str, Any], things: list[Tracked], path: Path, group: Any
) -> dict[str, Any]:
    """The states with their sharded tensors: sharded as in this program, or as full tensors.

    `currents` are the current states of the tracked objects. Every rank calls it.
    """
    shapes: dict[str, Tensor] = {}
    for tracked in things:
        _targets(states[tracked.name], currents[tracked.name], _params(tracked), shapes)
    if shapes:
        _read(shapes, path / FOLDER, group)
    return {
        tracked.name: _filled(
            states[tracked.name], currents[tracked.name], _params(tracked), shapes
        )
        for tracked in things
    }


def _read(targets: dict[str, Tensor], path: Path, group: Any) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp_load(targets, storage_reader=FileSystemReader(path), process_group=group)
    except CheckpointException as error:
        rank, (failed, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"{path} cannot be loaded (rank {rank}): {failed}") from error


def _params(tracked: Tracked) -> list[Tensor]:
    optimizer = tracked.optimizer()
    groups = optimizer.param_groups if optimizer is not None else []
    return [param for group in groups for param in group["params"]]


def _targets(saved: Any, current: Any, params: list[Tensor], targets: dict[str, Tensor]) -> None:
    """Add to `targets`, for each sharded tensor in a saved state, a tensor to read it into."""
    if isinstance(saved, dict) and MARK in saved:
        shape = torch.Size(saved["shape"])
        like = isinstance(current, Tensor) and current.shape == shape
        dtype = saved["dtype"]
        target = torch.empty_like(current, dtype=dtype) if like else torch.empty(shape, dtype=dtype)
        targets[saved[MARK]] = target
        return
    for value, current_value in _pairs(saved, current, params):
        _targets(value, current_value, params, targets)


def _filled(saved: Any, current: Any, params: list[Tensor], tensors: dict[str, Tensor]) -> Any:
    if isinstance(saved, dict) and MARK in saved:
        return tensors[saved[MARK]]
    if isinstance(saved, Tensor):
        matches = is_sharded(current) and current.shape == saved.shape
        return _sharded_like(saved, current) if matches else saved
    values = [
        _filled(value, current_value, params, tensors)
        for value, current_value in _pairs(saved, current, params)
    ]
    if isinstance(saved, dict):
        filled = type(saved)(zip(saved, values, strict=True))
        if hasattr(saved, "__dict__"):
            vars(filled).update(vars(saved))  # a module's _metadata
        return filled
    return type(saved)(values) if type(saved) in (list, tuple) else saved


def _pairs(saved: Any, current: Any, params: list[Tensor]) -> list[tuple[Any, Any]]:
    """The values of a saved nest, each with its current counterpart.

    A new optimizer has no state yet; then the parameter shows how its state is sharded.
    """
    if isinstance(saved, dict):
        now = current if isinstance(current, Mapping) else {}
        pairs = {key: (value, now.get(key)) for key, value in saved.items()}
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
        elements = current if isinstance(current, (list, tuple)) else []
        return [
            (value, elements[i] if i < len(elements) else None) for i, value in enumerate(saved)
        ]
    return []


def _sharded_like(full: Tensor, like: Any) -> Tensor:
    """The part of a full tensor that this rank holds, sharded like `like`."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    part = full
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        part = part.narrow(dim, offset, size)
    local = part.to(like.to_local().device, copy=True)
    sharded: Tensor = type(like)(local.contiguous(), like._spec, requires_grad=False)
    return sharded
