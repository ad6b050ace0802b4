"""The contents of a traceback's frames when a program ends by an exception: shapes, types, ranges.

They are read once, while the process ends and its values still exist. Values are read only from
tensors in main memory, and only a bounded number of elements: after a device-side assert no device
may be used, and a large program must not end later than it would have.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.watch import places

FRAMES = 6
"""The most frames with tensors that are kept."""
TENSORS = 10
"""The most tensors of one frame that are kept."""
NEST = 8
"""The most members of a list or dict that are examined."""
MOST_ELEMENTS = 1 << 24
"""A tensor with more elements is reported only by shape and type."""
LIMIT_S = 1.0
"""No further values are read after this long."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose values can be read; subclasses may compute, communicate, or hold none."""
LOSSES = ("cross_entropy", "nll_loss")
FETCHED = "__getitem__"


def of(error: BaseException) -> wire.CrashScene:
    """The scene of an exception. May raise: the caller records that and goes on."""
    frames = list(_frames(error.__traceback__))
    reader = _Reader()
    seen = [reader.frame(frame, line) for frame, line in reversed(frames)]
    kept = [entry for entry in seen if entry.tensors][:FRAMES]
    inner = [frame for frame, _ in reversed(frames)]
    misfits = (reader.misfit(frame, inner) for frame in inner)
    misfit = next((wrong for wrong in misfits if wrong is not None), None)
    return wire.CrashScene(tuple(kept), misfit, _sample(frame for frame, _ in frames))


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _sample(frames: Iterator[FrameType]) -> int | None:
    """The index given to the data set's `__getitem__`: the innermost that is a number."""
    index = None
    for frame in frames:
        if frame.f_code.co_name == FETCHED and frame.f_code.co_argcount == 2:
            value = frame.f_locals.get(frame.f_code.co_varnames[1])
            if type(value) is int:
                index = value
    return index


class _Reader:
    """Reads tensors within the limits of one crash."""

    def __init__(self) -> None:
        self._until = time.monotonic() + LIMIT_S

    def frame(self, frame: FrameType, line: int) -> wire.SceneFrame:
        """A frame with the tensors held by its names."""
        tensors: dict[int, wire.TensorSeen] = {}
        for name, tensor in _held(frame):
            if len(tensors) >= TENSORS:
                break
            if id(tensor) not in tensors:
                tensors[id(tensor)] = self.tensor(name, tensor)
        instance = frame.f_locals.get("self")
        module = type(instance).__name__ if isinstance(instance, torch.nn.Module) else ""
        file = frame.f_code.co_filename
        where = f"{places.display(file)}:{line}"
        own = places.user_frame(frame) is frame
        return wire.SceneFrame(where, frame.f_code.co_name, tuple(tensors.values()), module, own)

    def tensor(self, name: str, tensor: torch.Tensor) -> wire.TensorSeen:
        kind = str(tensor.dtype).removeprefix("torch.")
        seen = wire.TensorSeen(name, tuple(map(int, tensor.shape)), kind, str(tensor.device))
        if not self._readable(tensor) or tensor.dtype is torch.bool or tensor.is_complex():
            return seen
        try:
            return _with_values(seen, tensor.detach())
        except (RuntimeError, MemoryError, NotImplementedError):  # no memory left, no such kernel
            return seen

    def _readable(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) in PLAIN
            and tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and 0 < tensor.numel() <= MOST_ELEMENTS
            and time.monotonic() < self._until
        )

    def misfit(self, frame: FrameType, inner: Sequence[FrameType]) -> wire.Misfit | None:
        """Values not accepted by the torch function in whose frame it failed.

        inner: all frames, innermost first, as a user's frame has another name for the tensor.
        """
        if not frame.f_globals.get("__name__", "").startswith("torch.nn.functional"):
            return None
        name, values = frame.f_code.co_name, frame.f_locals
        source = values.get("input")
        if not isinstance(source, torch.Tensor):
            return None
        if name == "embedding":
            weight = values.get("weight")
            if isinstance(weight, torch.Tensor) and weight.dim():
                rows = int(weight.shape[0])
                return self._outside("index", _own_name(source, inner, "input"), source, rows)
        target = values.get("target")
        if name in LOSSES and isinstance(target, torch.Tensor):
            if target.is_floating_point() or not source.dim():
                return None
            classes = int(source.shape[0 if source.dim() == 1 else 1])
            ignored = values.get("ignore_index", -100)
            called = _own_name(target, inner, "target")
            return self._outside("label", called, target, classes, ignored, source.dim() > 1)
        if name == "binary_cross_entropy":
            return self._outside("probability", _own_name(source, inner, "input"), source, 1.0)
        return None

    def _outside(
        self,
        kind: wire.MisfitKind,
        name: str,
        tensor: torch.Tensor,
        limit: float,
        ignored: int | None = None,
        batched: bool = True,
    ) -> wire.Misfit | None:
        if not self._readable(tensor):
            return None
        try:
            return _first_outside(kind, name, tensor.detach(), limit, ignored, batched)
        except (RuntimeError, MemoryError):
            return None


def _first_outside(
    kind: wire.MisfitKind,
    name: str,
    values: torch.Tensor,
    limit: float,
    ignored: int | None,
    batched: bool,
) -> wire.Misfit | None:
    """The first value outside 0 and limit, and the number of such values."""
    if kind == "probability":
        wrong = ~((values >= 0) & (values <= limit))  # NaN is neither
    else:
        wrong = (values < 0) | (values >= limit)
    if ignored is not None:
        wrong &= values != ignored
    count = int(wrong.sum())
    if not count:
        return None
    first = wrong.nonzero()[0]
    position = tuple(int(place) for place in first)
    value = float(values[position])
    fits = value == value and abs(value) != float("inf")  # JSON knows neither NaN nor Inf
    return wire.Misfit(
        kind, name, value if fits else -1.0, position, count, int(values.numel()), limit, batched
    )


def _own_name(tensor: torch.Tensor, inner: Sequence[FrameType], name: str) -> str:
    """The tensor's name in the user's own code, or `name` if it has none there."""
    for frame in inner:
        if places.user_frame(frame) is frame:
            for own, other in _held(frame):
                if other is tensor:
                    return own
    return name


def _with_values(seen: wire.TensorSeen, values: torch.Tensor) -> wire.TensorSeen:
    """The tensor's record with the range of its values, for floats that of the finite ones."""
    nans = None
    if values.is_floating_point():
        finite = values.isfinite()
        nans = int(values.numel() - int(finite.sum()))
        values = values[finite] if nans else values
    if not values.numel():
        return dataclasses.replace(seen, nans=nans)
    low, high = float(values.min()), float(values.max())
    return dataclasses.replace(seen, low=low, high=high, nans=nans)


def _held(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors by the names of a frame, and those one level down in lists and dicts.

    For a module's method, also the module's own parameters by name.
    """
    module_level = frame.f_code.co_name == "<module>"
    for name, value in list(frame.f_locals.items()):
        if name.startswith("__") or (module_level and name in sys.modules):
            continue
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, torch.nn.Module) and name == "self":
            for inner, parameter in list(value._parameters.items())[:NEST]:
                if isinstance(parameter, torch.Tensor):
                    yield f"self.{inner}", parameter
        elif type(value) in (list, tuple):
            for place, member in enumerate(value[:NEST]):
                if isinstance(member, torch.Tensor):
                    yield f"{name}[{place}]", member
        elif isinstance(value, dict):
            yield from _members(name, value)


def _members(name: str, members: dict[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for key, member in list(members.items())[:NEST]:
        if isinstance(member, torch.Tensor):
            yield f"{name}[{key!r}]", member
