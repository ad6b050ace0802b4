"""torch.export of a flat model with varying dimensions dynamic, and a check of each.

torch silently makes a dimension static if the program needs that (`Dim.AUTO`). So the result is
inspected, and the program is run with other sizes and compared with the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from flatout_agent.attach import tracebacks
from flatout_agent.capture import refusal, rows
from flatout_agent.capture.flat import FlatModel
from flatout_agent.capture.rows import Rows, Tensors

MOST_CHECKS = 16
"""The number of observed samples on which the program is compared."""
Dims = tuple[frozenset[int], ...]
"""The dynamic dimensions of each input."""


@dataclass(frozen=True)
class ModelProgram:
    """An exported program and its properties."""

    exported: ExportedProgram
    dims: Dims
    batch_dynamic: bool
    samples: tuple[int, ...]
    """The samples that it can be run with."""
    notes: tuple[str, ...] = ()


def export(flat: FlatModel, samples: Sequence[Tensors], by_rows: Rows | None) -> ModelProgram:
    """Export with all sizes that vary, else with the batch alone, else with fixed sizes."""
    first = samples[0]
    varying = tuple(
        frozenset(
            dim
            for dim in range(tensor.dim())
            if any(sample[at].shape[dim] != tensor.shape[dim] for sample in samples)
        )
        for at, tensor in enumerate(first)
    )
    batch: Dims = ()
    if by_rows is not None:
        batch = tuple(frozenset() if dim is None else frozenset({dim}) for dim in by_rows.inputs)
    both = (
        tuple(one | other for one, other in zip(varying, batch, strict=True)) if batch else varying
    )
    nothing: Dims = tuple(frozenset() for _ in samples[0])
    notes: list[str] = []
    error: Exception | None = None
    tried: list[Dims] = []
    for dims in (both, batch or nothing, nothing):
        if dims in tried:
            continue
        tried.append(dims)
        usable = _usable(samples, dims)
        try:
            done = _export(flat, samples, usable, dims, by_rows)
        except Exception as caught:
            error = error or caught
            continue
        if isinstance(done, ModelProgram):
            return ModelProgram(done.exported, done.dims, done.batch_dynamic, usable, tuple(notes))
        notes.append(done)
    if error is not None:
        raise refusal.of_export(error)
    raise refusal.CannotCapture(
        f"what torch.export makes of it does not compute the same: {notes[-1]}",
        "report it with the model: the exported program is wrong",
    )


def _usable(samples: Sequence[Tensors], dims: Dims) -> tuple[int, ...]:
    """The samples with the most common fixed sizes."""

    def fixed(sample: Tensors) -> tuple[object, ...]:
        return tuple(
            tuple(None if dim in of else size for dim, size in enumerate(tensor.shape))
            for tensor, of in zip(sample, dims, strict=True)
        )

    kinds = [fixed(sample) for sample in samples]
    most = max(kinds, key=lambda kind: (kinds.count(kind), str(kind)))
    return tuple(place for place, kind in enumerate(kinds) if kind == most)


def _export(
    flat: FlatModel,
    samples: Sequence[Tensors],
    usable: Sequence[int],
    dims: Dims,
    by_rows: Rows | None,
) -> ModelProgram | str:
    """The program, or why it cannot have these dynamic dimensions."""
    own = [samples[place] for place in usable]
    batch = by_rows is not None and all(
        dim is None or dim in of for dim, of in zip(by_rows.inputs, dims, strict=True)
    )
    traced = _traced(own, dims, by_rows if batch else None)
    shapes = {
        name: dict.fromkeys(sorted(of), Dim.AUTO)
        for name, of in zip(flat.input_names, dims, strict=True)
    }
    with symbolic_len(flat):
        exported = torch.export.export(flat, traced, dynamic_shapes=shapes, strict=False)
    exported.graph.eliminate_dead_code()  # an input of a loss that is no output
    exported.graph_module.recompile()
    # The dynamic dimensions of the program.
    names = set(exported.graph_signature.user_inputs)
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in nodes if node.name in names]
    dynamic = tuple(
        frozenset(dim for dim, size in enumerate(value.shape) if _varies(exported, size))
        for value in values
    )
    if len(dynamic) != len(dims):
        raise RuntimeError(f"the program has {len(dynamic)} inputs, the model {len(dims)}")
    lost = [
        f"{name} (dimension {dim})"
        for name, wanted, got in zip(flat.input_names, dims, dynamic, strict=True)
        for dim in sorted(wanted - got)
    ]
    if lost:
        return f"the program holds for one size alone of {', '.join(lost)}{_why_fixed(flat)}"
    run = exported.module()
    for what, inputs in _checks(own, by_rows if batch else None):
        wanted = flat(*inputs)
        try:
            got = run(*inputs)
        except Exception as error:
            first = tracebacks.first_line(error)[:200]
            if first.startswith("Guard failed"):
                return f"the program does not hold for {what}{_why_fixed(flat)}"
            return f"with {what} the program fails: {first}"
        if not all(map(rows.close, got, wanted)):
            return f"with {what} the program computes something else"
    return ModelProgram(exported, dynamic, batch, tuple(usable))


def _why_fixed(flat: FlatModel) -> str:
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in flat.modules())
    return " (torch.export fixes the sequence length of nn.LSTM and nn.GRU)" if recurrent else ""


def _traced(own: Sequence[Tensors], dims: Dims, by_rows: Rows | None) -> Tensors:
    """The largest sample, with a different size for each dynamic dimension.

    torch treats dynamic dimensions of the same size as one.
    """
    largest = max(own, key=lambda sample: sum(tensor.numel() for tensor in sample))
    if by_rows is None:
        return largest
    other = {
        int(tensor.shape[dim])
        for tensor, of, counts in zip(largest, dims, by_rows.inputs, strict=True)
        for dim in of
        if dim != counts
    }
    count = max(2, by_rows.count(largest))
    while count > 2 and count in other:
        count -= 1
    while count in other:
        count += 1
    return by_rows.repeated(largest, count)


def _varies(exported: ExportedProgram, size: int | torch.SymInt) -> bool:
    if not isinstance(size, torch.SymInt):
        return False
    limits = exported.range_constraints.get(size.node.expr)
    return limits is None or limits.lower != limits.upper


@contextlib.contextmanager
def symbolic_len(flat: torch.nn.Module) -> Iterator[None]:
    """Replace `len(tensor)` by `tensor.shape[0]` in the code of the model's classes while it is
    traced.

    The built-in one must return a plain number, the size of the traced batch, which torch.export
    would then take for the only one.
    """
    codes = {id(code): code for module in flat.modules() if (code := _globals(module)) is not None}
    changed = [names for names in codes.values() if "len" not in names]
    for names in changed:
        names["len"] = _len
    try:
        yield
    finally:
        for names in changed:
            names.pop("len", None)


def _globals(module: torch.nn.Module) -> dict[str, Any] | None:
    """The names that the code of its class uses, or None if it is torch's or ours."""
    if type(module).__module__.partition(".")[0] in ("torch", "flatout_agent"):
        return None
    return getattr(type(module).forward, "__globals__", None)


def _len(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def _checks(own: Sequence[Tensors], by_rows: Rows | None) -> Iterator[tuple[str, Tensors]]:
    step = max(1, len(own) // MOST_CHECKS)
    for sample in own[::step]:
        yield f"inputs of {[list(tensor.shape) for tensor in sample]}", sample
    if by_rows is not None:
        largest = max(own, key=by_rows.count)
        most = by_rows.count(largest)
        for count in sorted({1, 2, 3, max(1, most // 2), most + 1}):
            yield f"batch size {count}", by_rows.repeated(largest, count)
