"""The output of a language model's head before anybody has looked at it.

`DeferredLogits` stands for the output of a linear layer. It knows its shape and dtype, takes part
in views, slices, transpositions and casts to a wider dtype, and cross entropy takes the layer's
input and weight out of it. For everything else it computes what the layer would have returned, and
from then on it is that tensor.
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
from flatout_train.step.chunked_loss import Terms
from flatout_train.step.logits_outline import Outline, called, changed, getter

_cross_entropy = functional.cross_entropy


_OF_SHAPE = {
    *map(getter, ("shape", "ndim", "dtype", "layout", "is_sparse", "is_nested", "is_quantized")),
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride,
    Tensor.is_contiguous, Tensor.element_size, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.__len__, torch.numel, torch.is_floating_point, torch.is_complex,
}  # fmt: skip
_OF_PLACE = {*map(getter, ("device", "is_cuda", "is_cpu", "is_meta")), Tensor.get_device}
_OF_GRAPH = {*map(getter, ("requires_grad", "grad_fn", "is_leaf", "output_nr"))}
_OF_GRADIENT = {
    getter("grad"), Tensor.register_hook, Tensor.retain_grad, torch.autograd.grad,
    torch.autograd.backward,
}  # fmt: skip


@dataclass
class Product:
    """One call of the head, and all tensors that stand for its output or parts of it."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    slope: chunked_loss.Slope = chunked_loss.slope
    refused: Callable[[str], None] = lambda reason: None
    """Is told why the logits were computed after all."""
    used: Callable[[int, int], None] = lambda rows, columns: None
    """Is told of each loss that was computed without them."""
    consumed: bool = False
    _members: list[weakref.ref[DeferredLogits]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.input.device.type
        self.autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        self.dtype = torch.get_autocast_dtype(kind) if self.autocast else self.input.dtype
        self._versions = self._written()

    def check(self) -> None:
        """Input and weight are as they were when the head was called."""
        if self._written() != self._versions:
            raise UsageError(
                'with logits="chunked" the input and the weight of the head must stay as they are '
                'until the loss is computed: take logits="stored"'
            )

    def _written(self) -> list[int]:
        inputs = (self.input, self.weight, self.bias)
        return [item._version for item in inputs if item is not None]

    def output(self) -> DeferredLogits:
        """What the layer returns."""
        shape = (*self.input.shape[:-1], len(self.weight))
        twin = torch.empty(shape, dtype=self.dtype, device="meta")
        return self.stand_in(Outline(twin, len(shape) - 1))

    def stand_in(self, outline: Outline, parent: DeferredLogits | None = None) -> DeferredLogits:
        """A tensor with this outline, part of the graph like what it stands for."""
        make: Callable[..., DeferredLogits] = _Made.apply
        made = make(self.input, self.weight, self.bias, self, outline)
        made.product, made.outline, made.parent, made.whole = self, outline, parent, None
        self._members.append(weakref.ref(made))
        return made

    def computed(self, *inputs: Tensor | None) -> Tensor:
        """The layer's output, as it would have computed it; of other inputs, if given."""
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
        """Those that are still held and not computed, parents first."""
        members = (reference() for reference in self._members)
        return [member for member in members if member is not None and member.whole is None]

    def compute(self, reason: str) -> None:
        """Make real tensors of all that are held: they may share memory, and be written to."""
        members = self.alive()
        if members:
            self.check()
            self.refused(reason)
        for member in members:
            if member.parent is None:
                member.whole = self.computed()
            else:
                assert member.parent.whole is not None
                with _as_outside():
                    member.whole = called(member.outline.calls[-1], member.parent.whole)


class DeferredLogits(Tensor):
    """See the module. Made by `Product`."""

    product: Product
    outline: Outline
    parent: DeferredLogits | None
    whole: Tensor | None
    """The logits, once they are computed."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, DeferredLogits) and first.whole is None:
            answer = _answer(first, func, args[1:], kwargs)
            if answer is not NotImplemented:
                return answer
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", name)
        args, kwargs = tree_map(
            lambda item: _real(item, f"{name} needs them", func), (args, kwargs)
        )
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls from C++ that ask for values alone: the graph knows of `_Made`."""

        def values(item: Any) -> Any:
            is_ours = isinstance(item, DeferredLogits)
            return _real(item, f"{func} needs them", func).detach() if is_ours else item

        args, kwargs = tree_map(values, (args, kwargs or {}))
        return func(*args, **kwargs)


def _real(item: Any, reason: str, func: Any) -> Any:
    if not isinstance(item, DeferredLogits):
        return item
    if item.product.consumed and func in _OF_GRADIENT:
        raise UsageError(
            'with logits="chunked" the gradient of the logits is not kept: take logits="stored"'
        )
    if item.whole is None:
        item.product.compute(reason)
    return item.whole


def _answer(logits: DeferredLogits, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What needs no values; NotImplemented where values are needed."""
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
    if any(isinstance(item, Tensor) for item in (*args, *named.values())):
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
    """Cross entropy of these logits without them, where it can be."""
    outline, product = logits.outline, logits.product
    if size_average is not None or reduce is not None or reduction not in ("mean", "sum"):
        return NotImplemented
    shape = list(outline.twin.shape)
    classes = shape.pop(outline.classes)
    if outline.classes != 1 or not _are_indices(target, shape, product.input.device):
        return NotImplemented
    if weight is not None and (
        label_smoothing or type(weight) is not Tensor or weight.requires_grad
        or weight.shape != (classes,) or weight.device != product.input.device
    ):  # fmt: skip
        return NotImplemented
    if not 0.0 <= label_smoothing <= 1.0:
        return NotImplemented
    kind, dtype = product.input.device.type, outline.twin.dtype
    wide = torch.promote_types(dtype, torch.float32)
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    mean, result = reduction == "mean", wide if casts else dtype
    terms = Terms(product.dtype, wide, result, mean, ignore_index, label_smoothing, product.slope)
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
    """As where the head was called: with gradients, and no hook takes what the graph saves."""
    packed = packing() is not None  # where there are hooks, torch checks no versions
    ours: Any = torch.autograd.graph.saved_tensors_hooks(_itself, _itself)
    with torch.enable_grad(), ours if packed else contextlib.nullcontext():
        yield


def _itself(saved: Tensor) -> Tensor:
    return saved


def packing() -> str | None:
    """Whether hooks take what the graph saves, in words; None: they do not.

    Those of activation checkpointing compare it with what a second run outside of the step saves.
    """
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is None:
        return "this version of torch does not tell whether activations are checkpointed"
    return None if hooks(True) is None else "activations are checkpointed or kept elsewhere here"


def _are_indices(target: Any, shape: list[int], device: torch.device) -> bool:
    return (
        isinstance(target, Tensor)
        and not isinstance(target, DeferredLogits)
        and target.dtype == torch.int64
        and list(target.shape) == shape
        and target.device == device
    )


class _Made(torch.autograd.Function):
    """The place of deferred logits in the graph, for whoever reaches them past `Product`."""

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
        made: Tensor = Tensor._make_wrapper_subclass(
            DeferredLogits, twin.shape, twin.stride(), dtype=twin.dtype, device=rows.device
        )
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        further = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = chunked_loss.aliases(ctx.saved_tensors)
            output = ctx.computed(*inputs)
            for call in ctx.calls:
                output = called(call, output)
        needed = ctx.needs_input_grad[:3]
        asked = [item for item, need in zip(inputs, needed, strict=True) if need]
        made = iter(torch.autograd.grad(output, asked, gradient, create_graph=further))
        return (*(next(made) if need else None for need in needed), None, None)
