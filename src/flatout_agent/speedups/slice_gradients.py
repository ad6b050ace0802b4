"""Slices of one tensor that are read or written in a loop: gradients in one pass for all.

As written, the gradient of each slice that is read is put into zeros as large as the whole tensor,
and all of these are added; and for each slice that is written, the gradient of the whole tensor is
copied. The steps of a sequence thus cost the square of its length. An embedding that is looked up
at each step is such a tensor, too.

Reading: slices are taken of a second view of the tensor, which nobody else has. In the backward
pass the first of them makes the zeros, and the others are added into these when all have come.
Views, versions and errors stay torch's own.

Writing: a slice that is written for the first time into a tensor that was without a gradient needs
no copy, because nobody reads what else the gradient holds there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flatout_agent.speedups.getitem import getitem
from flatout_agent.speedups.stand_in import StandIns, is_plain

if TYPE_CHECKING:
    import torch

SMALLEST = 1 << 16
"""Numbers in the smallest whole tensor: with fewer, torch's passes cost less than our calls."""
FEW = 4
"""An embedding has at least so many times the numbers that are looked up."""
MOST_HELD = 1
"""Gradients of slices that are held before they are added, in multiples of the whole tensor."""
MOST_VIEWS = 4
"""Second views that further slices may be taken of. Each keeps its tensor in memory until the
backward pass."""
MOST_REMEMBERED = 1000
"""Tensors and shapes that are remembered; then all are forgotten."""
Add = Callable[["torch.Tensor", "torch.Tensor"], Any]
"""Adds the gradient of what was read to the gradient of the whole tensor."""


class SliceGradients:
    """Takes the reads and writes that it can make cheaper, and passes on the others."""

    def __init__(self) -> None:
        import torch

        self.taken = 0
        """Slices read from a second view, and written without a copy of a gradient."""
        self._stand_ins = StandIns(
            {
                torch.Tensor: {"__setitem__": self._setitem},
                torch: {"embedding": self._embedding},
            }
        )
        self._views: dict[int, Callable[[], _View | None]] = {}
        """By the tensor's id. A tensor with a weak reference cannot be swapped, as modules do."""
        self._forget()

    def _forget(self) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        for view in self._views.values():
            _close(view)
        self._views.clear()
        self._writes: Any = WeakTensorKeyDictionary()
        self._read_last: dict[int, int] = {}
        """The version of each tensor that was read, by the tensor's id."""
        self._read_again: set[torch.Size] = set()
        """Shapes of tensors of which several slices were read."""

    def hold(self) -> None:
        """Add a holder."""
        self._stand_ins.hold()
        getitem().hold(self._read)

    def let_go(self) -> None:
        """Remove a holder; what was taken before keeps its gradient."""
        getitem().let_go(self._read)
        self._stand_ins.let_go()
        if not self._stand_ins.holders:
            self._forget()

    def _read(self, original: Callable[..., Any], tensor: Any, key: Any) -> Any:
        """`tensor[key]` of the second view, or None where torch shall read it."""
        if not (tensor.requires_grad and _is_basic(key) and _is_usual(tensor)):
            return None
        view = self._view(tensor)
        return None if view is None else view.read(original, tensor, key)

    def _embedding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def embedding(*args: Any, **kwargs: Any) -> Any:
            if self._stand_ins.holders and len(args) > 1 and not kwargs and _is_lookup(*args):
                view = self._view(args[0])
                if view is not None:
                    return view.look_up(original, *args)
            return original(*args, **kwargs)

        return embedding

    def _view(self, tensor: torch.Tensor) -> _View | None:
        """The second view of the tensor, unless it may be read only once."""
        key = id(tensor)
        if len(self._read_last) > MOST_REMEMBERED or len(self._read_again) > MOST_REMEMBERED:
            self._read_last.clear()
            self._read_again.clear()
        if self._read_last.get(key) == tensor._version:
            self._read_again.add(tensor.shape)
        self._read_last[key] = tensor._version
        if tensor.shape not in self._read_again:
            return None
        self.taken += 1
        known = self._views.get(key, lambda: None)
        view = known()
        if view is None or not view.is_of(tensor):
            _close(known)
            view = _View(tensor)
            self._views.pop(key, None)
            self._views[key] = weakref.ref(view)
            if len(self._views) > MOST_VIEWS:
                _close(self._views.pop(next(iter(self._views))))
        return view

    def _setitem(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        has_torch_function = torch.overrides.has_torch_function

        def setitem(input: Any, key: Any, value: Any) -> None:
            if has_torch_function((input, key, value)):  # it is asked with torch's own function
                everything = input, key, value
                torch.overrides.handle_torch_function(original, everything, *everything)
                return
            place = _place(input, key, value) if self._stand_ins.holders else None
            if place is None:
                original(input, key, value)
                return
            _close(self._views.pop(id(input), lambda: None))  # it is another version from now on
            writes = self._writes.get(input)
            if writes is not None and writes.goes_on(input, place):
                self.taken += 1
                _write().apply(input, value.to(input.dtype), key)
            else:
                fresh = not input.requires_grad and input._base is None
                original(input, key, value)
                if not fresh:
                    self._writes.pop(input, None)
                    return
                writes = self._writes[input] = _Writes(place.dim)
            writes.numbers.add(place.number)
            writes.version = input._version

        return setitem


def _is_usual(tensor: Any) -> bool:
    """Whether it is a large tensor on the CPU, in an ordinary call that has a gradient."""
    import torch

    return bool(
        torch.is_grad_enabled()
        and is_plain(tensor)
        and tensor.device.type == "cpu"
        and tensor.numel() >= SMALLEST
        and not tensor.is_inference()
        and not torch.is_anomaly_enabled()
    )


# Reading --------------------------------------------------------------------------------------


def _is_basic(key: Any) -> bool:
    """Whether it is numbers and slices, which give a view."""
    return all(map(_is_basic_part, key)) if type(key) is tuple else _is_basic_part(key)


def _is_basic_part(part: Any) -> bool:
    if type(part) is slice:
        return all(type(b) in (int, type(None)) for b in (part.start, part.stop, part.step))
    return part is None or part is Ellipsis or type(part) is int


def _is_lookup(weight: Any, indices: Any, padding: int = -1, *others: Any) -> bool:
    """Whether it is an ordinary call for few rows of a large embedding with a dense gradient."""
    return bool(
        not any(others)  # a gradient that is scaled by frequency, or sparse
        and _is_usual(weight)
        and weight.requires_grad
        and weight.dim() == 2
        and is_plain(indices)
        and FEW * indices.numel() * weight.shape[1] <= weight.numel()
    )


class _View:
    """A second view of a tensor.

    It keeps the tensor alive, so only the nodes of its slices hold it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor.view_as(tensor)
        """None when no more slices are taken of it."""
        node: Any = self.tensor.grad_fn
        self._node = node
        self._version = tensor._version
        self._coming = coming = _Coming(tensor.shape)
        itself = weakref.ref(self)

        def complete(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
            _close(itself)
            return (coming.added_to(gradients[0]),)

        node.register_prehook(complete)

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether it shows this tensor as it is now. Its memory and its history can be replaced
        without another version (`tensor.data = ...`, `tensor.detach_()`).
        """
        ours, ((node, number),) = self.tensor, self._node.next_functions
        if tensor.grad_fn is None:
            continues = getattr(node, "variable", None) is tensor
        else:
            continues = node is tensor.grad_fn and number == tensor.output_nr
        return (
            ours is not None
            and continues
            and self._version == tensor._version
            and ours.data_ptr() == tensor.data_ptr()
            and ours.dtype is tensor.dtype
            and ours.shape == tensor.shape
            and ours.stride() == tensor.stride()
        )

    def read(self, original: Callable[..., Any], tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """`tensor[key]`. Raises what that raises."""
        ours = self.tensor
        found: torch.Tensor = original(tensor if ours is None else ours, key)
        if ours is not None and found.numel() < tensor.numel():
            self._watch(found, lambda whole, part: whole[key].add_(part))
        return found

    def look_up(
        self,
        original: Callable[..., Any],
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding: int = -1,
        *_: Any,
    ) -> torch.Tensor:
        """The rows of an embedding. Raises what `torch.embedding` raises."""
        ours = self.tensor
        if ours is None:  # another thread has closed it
            whole: torch.Tensor = original(weight, indices, padding, False, False)
            return whole
        found: torch.Tensor = original(ours, indices, padding, False, False)

        def add(whole: torch.Tensor, part: torch.Tensor) -> None:
            rows, part = indices.reshape(-1), part.reshape(-1, part.shape[-1])
            if padding >= 0:
                kept = rows != padding
                rows, part = rows[kept], part[kept]
            whole.index_add_(0, rows, part)

        self._watch(found, add)
        return found

    def _watch(self, found: torch.Tensor, add: Add) -> None:
        """add: adds the gradient of what was read to that of the whole tensor."""
        node: Any = found.grad_fn
        node.register_prehook(functools.partial(_come, self, add))


def _close(view: Callable[[], _View | None]) -> None:
    open_view = view()
    if open_view is not None:
        open_view.tensor = None


def _come(view: _View, add: Add, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The gradient of a slice has come."""
    return (None,) if view._coming.takes(add, gradients[0]) else None


class _Coming:
    """The gradients of slices that have come, by backward pass: one may run within another."""

    def __init__(self, shape: torch.Size) -> None:
        """shape: that of the whole tensor."""
        self._shape = shape
        self._passes: dict[int, _Pass] = {}

    def takes(self, add: Add, gradient: torch.Tensor | None) -> bool:
        """Whether it will be added by `added_to`. The first one in a backward pass is not taken: it
        goes as written, and makes the zeros.
        """
        import torch

        if gradient is None or torch.is_grad_enabled():  # nothing; or it has a gradient itself
            return False
        if torch._C._functorch.is_legacy_batchedtensor(gradient):  # `is_grads_batched`
            return False
        number = torch._C._current_graph_task_id()
        if number not in self._passes:
            self._passes[number] = _Pass(self._shape)
            return False
        self._passes[number].take(add, gradient)
        return True

    def added_to(self, total: Any) -> Any:
        """The gradient of the whole tensor, where `total` is that of the first slice."""
        import torch

        finished = self._passes.pop(torch._C._current_graph_task_id(), None)
        if finished is not None:
            finished.add_to(total)
        return total


class _Pass:
    """The gradients of slices but the first one in a backward pass."""

    def __init__(self, shape: torch.Size) -> None:
        self._shape = shape
        self._slices: list[tuple[Add, torch.Tensor]] = []
        self._held = 0
        self._sum: torch.Tensor | None = None
        """Of those that are no longer held."""

    def take(self, add: Add, gradient: torch.Tensor) -> None:
        # The program may change the memory of a gradient that is not its own any more, as may a
        # backward pass within this one.
        self._slices.append((add, gradient.clone()))
        self._held += gradient.numel()
        if self._held > MOST_HELD * self._shape.numel():
            if self._sum is None:
                self._sum = gradient.new_zeros(self._shape)
            self._add_held_to(self._sum)

    def add_to(self, total: torch.Tensor) -> None:
        self._add_held_to(total)
        if self._sum is not None:
            total.add_(self._sum)

    def _add_held_to(self, total: torch.Tensor) -> None:
        for add, gradient in self._slices:
            add(total, gradient)
        self._slices, self._held = [], 0


# Writing --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    dim: int
    number: int


@dataclass
class _Writes:
    """The slices of a tensor that were written since it was without a gradient."""

    dim: int
    numbers: set[int] = field(default_factory=set)
    version: int = -1

    def goes_on(self, tensor: torch.Tensor, place: _Place) -> bool:
        """Whether another slice is written, and nothing else was since the last one."""
        return (
            self.version == tensor._version
            and self.dim == place.dim
            and place.number not in self.numbers
            and not tensor._backward_hooks  # they would see the gradients of later slices
            and not tensor.retains_grad
        )


def _place(tensor: Any, key: Any, value: Any) -> _Place | None:
    """The slice that `tensor[key] = value` writes, if that is an ordinary call for one of a large
    tensor, and the value has a gradient.
    """
    import torch

    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    parts = key if type(key) is tuple else (key,)
    numbers = [dim for dim, part in enumerate(parts) if type(part) is int]
    if len(numbers) != 1:
        return None
    dim = numbers[0]
    others = (*parts[:dim], *parts[dim + 1 :])
    if not all(type(part) is slice and part == slice(None) for part in others):
        return None
    if not (_is_usual(tensor) and is_plain(value)) or len(parts) > tensor.dim():
        return None
    shape, size = list(tensor.shape), tensor.shape[dim]
    del shape[dim]
    usual = (
        -size <= parts[dim] < size
        and list(value.shape) == shape
        and value.device == tensor.device
        and tensor.is_floating_point()
        and value.is_floating_point()
    )
    return _Place(dim, parts[dim] % size) if usual else None


@functools.cache
def _write() -> Any:
    import torch

    class Write(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, value: torch.Tensor, key: Any) -> Any:
            tensor[key] = value
            ctx.mark_dirty(tensor)
            ctx.set_materialize_grads(False)
            ctx.key = key
            return tensor

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            # What the gradient holds in this slice is not taken out for those below: each of them
            # reads its own slice, and this one was a constant.
            (gradient,) = gradients
            if gradient is None:
                return None, None, None
            return gradient, gradient[ctx.key].clone(memory_format=torch.contiguous_format), None

    return Write


@functools.cache
def slice_gradients() -> SliceGradients:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return SliceGradients()
