"""The output of a language model's head, computed only when it is read.

`DeferredLogits` stands for the output of a linear layer. It knows its shape and dtype, supports
views, slices, transpositions and casts to a wider dtype, and cross entropy reads the layer's input
and weight from it. For everything else it computes the layer's result, and from then on it is that
tensor.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from flatout_train.errors import UsageError
from flatout_train.step import chunked_loss
from flatout_train.step.chunked_loss import ChunkedLossTerms
from flatout_train.step.logits_outline import Outline, called, changed, getter

_cross_entropy = functional.cross_entropy


_OF_SHAPE = {
    *map(getter, ("shape", "ndim", "dtype", "layout", "is_sparse", "is_nested", "is_quantized")),
    Tensor.size,
    Tensor.dim,
    Tensor.ndimension,
    Tensor.numel,
    Tensor.nelement,
    Tensor.stride,
    Tensor.is_contiguous,
    Tensor.element_size,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.__len__,
    torch.numel,
    torch.is_floating_point,
    torch.is_complex,
}
_OF_PLACE = {*map(getter, ("device", "is_cuda", "is_cpu", "is_meta")), Tensor.get_device}
_OF_GRAPH = {*map(getter, ("requires_grad", "grad_fn", "is_leaf", "output_nr"))}
_OF_GRADIENT = {
    getter("grad"),
    Tensor.register_hook,
    Tensor.retain_grad,
    torch.autograd.grad,
    torch.autograd.backward,
}


@dataclass
class Product:
    """One call of the head, and all deferred tensors of its output or parts of it."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    slope: chunked_loss.Slope = chunked_loss.slope
    refused: Callable[[str], None] = lambda reason: None
    """Called with the reason if the logits are computed after all."""
    used: Callable[[int, int], None] = lambda rows, columns: None
    """Called with the rows and columns of each loss that is computed without them."""
    consumed: bool = False
    _members: list[weakref.ref[DeferredLogits]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.input.device.type
        self.autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        self.dtype = torch.get_autocast_dtype(kind) if self.autocast else self.input.dtype
        self._versions = self._written()

    def check(self) -> None:
        """Raise UsageError if input or weight were written to since the head was called."""
        if self._written() != self._versions:
            raise UsageError(
                'with logits="chunked" the input and the weight of the head must not be changed '
                'before the loss is computed: pass logits="stored"'
            )

    def _written(self) -> list[int]:
        inputs = (self.input, self.weight, self.bias)
        return [tensor._version for tensor in inputs if tensor is not None]

    def output(self) -> DeferredLogits:
        """The deferred output of the layer."""
        shape = (*self.input.shape[:-1], len(self.weight))
        twin = torch.empty(shape, dtype=self.dtype, device="meta")
        return self.stand_in(Outline(twin, len(shape) - 1))

    def stand_in(self, outline: Outline, parent: DeferredLogits | None = None) -> DeferredLogits:
        """A deferred tensor with this outline, in the graph like the tensor that it stands for."""
        make: Callable[..., DeferredLogits] = _Deferral.apply
        deferred = make(self.input, self.weight, self.bias, self, outline)
        deferred.product, deferred.outline, deferred.parent, deferred.logits = (
            self,
            outline,
            parent,
            None,
        )
        self._members.append(weakref.ref(deferred))
        return deferred

    def computed(self, *inputs: Tensor | None) -> Tensor:
        """The layer's output as it would have computed it; from `inputs`, if given."""
        rows, weight, bias = inputs or (self.input, self.weight, self.bias)
        assert rows is not None and weight is not None
        with _as_outside(), self._as_then():
            return functional.linear(rows, weight, bias)

    def _as_then(self) -> contextlib.AbstractContextManager[Any]:
        kind = self.input.device.type
        if not torch.amp.is_autocast_available(kind):
            return contextlib.nullcontext()
        return torch.autocast(kind, self.dtype if self.autocast else None, enabled=self.autocast)

    def alive(self) -> list[DeferredLogits]:
        """Deferred tensors that are still referenced and not computed, parents first."""
        members = (reference() for reference in self._members)
        return [member for member in members if member is not None and member.logits is None]

    def compute(self, reason: str) -> None:
        """Compute all that are referenced: they may share memory, and be written to."""
        members = self.alive()
        if members:
            self.check()
            self.refused(reason)
        for member in members:
            if member.parent is None:
                member.logits = self.computed()
            else:
                assert member.parent.logits is not None
                with _as_outside():
                    member.logits = called(member.outline.calls[-1], member.parent.logits)


class DeferredLogits(Tensor):
    """The stand-in that the module describes. Created by `Product`."""

    product: Product
    outline: Outline
    parent: DeferredLogits | None
    logits: Tensor | None
    """The computed logits, or None if not computed yet."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, DeferredLogits) and first.logits is None:
            answer = _answer(first, func, args[1:], kwargs)
            if answer is not NotImplemented:
                return answer
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        args, kwargs = tree_map(
            lambda value: _real(value, f"{name} needs them", func), (args, kwargs)
        )
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls from C++ that need values only: `_Deferral` is in the graph."""

        def values(value: Any) -> Any:
            is_ours = isinstance(value, DeferredLogits)
            return _real(value, f"{func} needs them", func).detach() if is_ours else value

        args, kwargs = tree_map(values, (args, kwargs or {}))
        return func(*args, **kwargs)


def _real(value: Any, reason: str, func: Any) -> Any:
    if not isinstance(value, DeferredLogits):
        return value
    if value.product.consumed and func in _OF_GRADIENT:
        raise UsageError(
            'with logits="chunked" the gradient of the logits is not stored: pass logits="stored"'
        )
    if value.logits is None:
        value.product.compute(reason)
    return value.logits


def _answer(logits: DeferredLogits, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of a function that needs no values, or NotImplemented if it needs them."""
    if func in _OF_SHAPE:
        return func(logits.outline.twin, *args, **named)
    if func in _OF_PLACE:
        return func(logits.product.input, *args, **named)
    if func in _OF_GRAPH:
        with torch._C.DisableTorchFunctionSubclass():
            return func(logits)
    if not torch.is_grad_enabled() or packing() is not None:
        return NotImplemented
    if func is _cross_entropy or func is functional.cross_entropy:
        named = {name: value for name, value in named.items() if name != "input"}
        return _loss(logits, *args, **named)
    if any(isinstance(value, Tensor) for value in (*args, *named.values())):
        return NotImplemented
    outline = changed(logits.outline, (func, args, named), logits.product.input.device)
    if outline is None:
        return NotImplemented
    return logits if outline is logits.outline else logits.product.stand_in(outline, logits)


def _loss(
    logits: DeferredLogits,
    target: Any,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Cross entropy without computing the logits; NotImplemented if that is not supported."""
    outline, product = logits.outline, logits.product
    if size_average is not None or reduce is not None or reduction not in ("mean", "sum"):
        return NotImplemented
    shape = list(outline.twin.shape)
    classes = shape.pop(outline.classes)
    if outline.classes != 1 or not _are_indices(target, shape, product.input.device):
        return NotImplemented
    if not 0.0 <= label_smoothing <= 1.0:
        return NotImplemented
    if weight is not None and (label_smoothing or not _weighs(weight, classes, product.input)):
        return NotImplemented
    kind, dtype = product.input.device.type, outline.twin.dtype
    wide = torch.promote_types(dtype, torch.float32)
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    mean, result = reduction == "mean", wide if casts else dtype
    terms = ChunkedLossTerms(
        product.dtype, wide, result, mean, ignore_index, label_smoothing, product.slope
    )
    rows = product.input
    for change in outline.changes:
        rows = change(rows)
    rows = rows.movedim(1, -1).reshape(-1, rows.shape[1])
    product.check()
    product.consumed = True
    product.used(len(rows), classes)
    return chunked_loss.cross_entropy(
        rows, product.weight, product.bias, target.reshape(-1), weight, terms
    )


@contextlib.contextmanager
def _as_outside() -> Iterator[None]:
    """The state in which the head was called: gradients enabled, no saved-tensor hooks."""
    packed = packing() is not None  # with hooks, torch does not check versions
    ours: Any = torch.autograd.graph.saved_tensors_hooks(_itself, _itself)
    with torch.enable_grad(), ours if packed else contextlib.nullcontext():
        yield


def _itself(saved: Tensor) -> Tensor:
    return saved


def packing() -> str | None:
    """Why saved-tensor hooks are in force, as text, or None if they are not.

    Those of activation checkpointing compare saved tensors with those of a recomputation outside
    the step.
    """
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is None:
        return "this version of torch does not show whether activations are checkpointed"
    return None if hooks(True) is None else "activations are checkpointed or offloaded"


def _weighs(weight: Any, classes: int, rows: Tensor) -> bool:
    """Whether this is a plain weight of each class, beside the head's input."""
    return (
        type(weight) is Tensor
        and not weight.requires_grad
        and weight.shape == (classes,)
        and weight.device == rows.device
    )


def _are_indices(target: Any, shape: list[int], device: torch.device) -> bool:
    return (
        isinstance(target, Tensor)
        and not isinstance(target, DeferredLogits)
        and target.dtype == torch.int64
        and list(target.shape) == shape
        and target.device == device
    )


class _Deferral(torch.autograd.Function):
    """The graph node of deferred logits, for code that reaches them other than by `Product`."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product: Product,
        outline: Outline,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, bias)
        ctx.calls, ctx.computed = outline.calls, product.computed
        twin = outline.twin
        wrapper: Tensor = Tensor._make_wrapper_subclass(
            DeferredLogits, twin.shape, twin.stride(), dtype=twin.dtype, device=rows.device
        )
        return wrapper

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        further = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = chunked_loss.aliases(ctx.saved_tensors)
            output = ctx.computed(*inputs)
            for call in ctx.calls:
                output = called(call, output)
        needed = ctx.needs_input_grad[:3]
        sources = [tensor for tensor, need in zip(inputs, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(output, sources, gradient, create_graph=further))
        return (*(next(gradients) if need else None for need in needed), None, None)
