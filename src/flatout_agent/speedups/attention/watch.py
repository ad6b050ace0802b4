"""Watches a module's forward pass for attention that is written out, and has it fused."""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.attention import forms, operators
from flatout_agent.speedups.attention.calls import (
    HERE,
    AttentionModule,
    DeferredStep,
    Pending,
    machinery,
    plain,
)

if TYPE_CHECKING:
    import torch

SMALLEST = 1 << 16
"""Scores: below this number, deferring operations costs more than the fused kernel gains."""
UNKNOWN = object()
"""The operation is not part of attention."""


class Watching:
    """What is deferred in one forward pass."""

    def __init__(self, place: AttentionModule) -> None:
        self.place = place
        self.machinery = machinery()
        self.table = operators.kinds_by_function()
        self.opened: list[weakref.ref[Pending]] = []

    def call(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Handle an operation of the program."""
        if self.machinery.deferred in types:
            return self._on_scores(func, args, kwargs)
        kind = self.table.get(func)
        if kind == "einsum" and any(
            type(item) is self.machinery.deferred for item in operators.flat(args)
        ):
            return self._on_scores(func, args, kwargs)  # torch does not look into its list
        if kind in ("product", "einsum"):
            scores = self._begin(kind, func, args, kwargs)
            if scores is not UNKNOWN:
                return scores
        elif self.opened and operators.writes(func, kwargs):
            self._written(args, kwargs)
        return func(*args, **kwargs)

    def _deferred(self, args: Any) -> list[Any]:
        """The deferred tensors among these arguments."""
        deferred = self.machinery.deferred
        return [argument for argument in operators.flat(args) if type(argument) is deferred]

    def _on_scores(self, func: Any, args: Any, kwargs: Any) -> Any:
        import torch

        kind = operators.kind_of(self.table, func)
        if kind == "query":
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        scores = UNKNOWN if kind is None else self._go_on(kind, func, args, kwargs)
        if scores is not UNKNOWN:
            return scores
        if operators.writes(func, kwargs):
            self._written(args, kwargs)
        return func(*self.machinery.resolved(args), **self.machinery.resolved(kwargs))

    def close(self) -> None:
        """The forward pass has ended."""
        self.machinery.close(self.opened)

    def _written(self, args: Any, kwargs: Any) -> None:
        """Called before a tensor is written to that a deferred operation may need."""
        for item in (*args[:1], *operators.flat([kwargs.get("out")]), kwargs.get("input")):
            self.machinery.resolve_written(self.opened, item)

    # Scores ---------------------------------------------------------------------------------

    def _begin(self, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        import torch

        equation, (a, b) = operators.factors(kind, args)
        if kwargs or a is None or not self._takes(a, b):
            return UNKNOWN
        form = forms.scores(a, b, equation)
        if form is None or math.prod(form.shape) < SMALLEST:
            return UNKNOWN
        if equation is None and func.__name__ == "bmm" and a.shape[0] != b.shape[0]:
            return UNKNOWN
        mode = self.machinery.mode(a.device.type)
        if mode[2] is not None and a.dtype is torch.float64:
            return UNKNOWN
        dtype = self.machinery.dtype(torch.matmul, a, mode, (HERE, HERE))
        step = DeferredStep(None, func, (a, b) if equation is None else (equation, a, b), {})
        return self._put_off(form.shape, dtype, Pending(step, form, mode, self.place))

    def _takes(self, *items: Any) -> bool:
        import torch

        plain = self.machinery.plain
        first = items[0]
        return all(
            type(item) in plain
            and item.dtype is first.dtype
            and item.device == first.device
            and 3 <= item.dim() <= 4
            and item.layout is torch.strided
            for item in items
        ) and (
            first.is_floating_point()
            and first.device.type in ("cpu", "cuda")
            and not any(item.is_nested for item in items)
        )

    def _put_off(self, shape: tuple[int, ...], dtype: torch.dtype, pending: Pending) -> Any:
        self.opened.append(weakref.ref(pending))
        return self.machinery.make(shape, dtype, pending)

    # Operations on scores -------------------------------------------------------------------

    def _go_on(self, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        operands = [
            scores for scores in operators.flat(args) if type(scores) is self.machinery.deferred
        ]
        if not operands or (len(operands) > 1 and kind != "cast"):
            return UNKNOWN
        scores = operands[0]
        pending = scores._flatout
        if pending.used or pending.mode != self.machinery.mode(pending.form.q.device.type):
            return UNKNOWN
        if kind in ("product", "einsum"):
            return UNKNOWN if kwargs else self._finish(kind, scores, args)
        return getattr(self, f"_{kind.rstrip('_')}")(func, scores, args, kwargs)

    def _noted(self, func: Any, scores: Any, args: Any, kwargs: Any, form: Any, **new: Any) -> Any:
        """The operation deferred; an in-place one changes the tensor itself."""
        if form is None:
            return UNKNOWN
        pending = scores._flatout
        args = tuple(HERE if argument is scores else argument for argument in args)
        step = DeferredStep(pending.step, func, args, kwargs)
        dtype, shape = new.get("dtype", scores.dtype), new.get("shape", tuple(scores.shape))
        if not func.__name__.endswith("_") or func.__name__.endswith("__"):
            return self._put_off(shape, dtype, Pending(step, form, pending.mode, pending.place))
        open_scores = [ref() for ref in self.opened]
        if dtype != scores.dtype or any(
            argument is not None
            and argument is not pending
            and argument.item is not None
            and argument.item() is not None
            for argument in open_scores
        ):
            return UNKNOWN
        pending.step, pending.form = step, form
        return scores

    def _scale(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if kwargs or len(args) != 2:
            return UNKNOWN
        divided = "div" in func.__name__
        factor = args[1] if args[0] is scores else args[0]
        if divided and args[0] is not scores:
            return UNKNOWN
        dtype = scores.dtype
        if not isinstance(factor, (int, float)):
            if type(factor) not in self.machinery.plain:
                return UNKNOWN
            if factor.dim():
                dtype = torch.promote_types(dtype, factor.dtype)
        full = scores._flatout.mode[2] is None
        form = forms.scaled(scores._flatout.form, factor, divided, full)
        return self._noted(func, scores, args, kwargs, form, dtype=dtype)

    def _add(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        import torch

        minus = "sub" in func.__name__
        addend = args[1] if args[0] is scores else args[0]
        if kwargs or len(args) != 2 or type(addend) not in self.machinery.plain:
            return UNKNOWN
        if not addend.is_floating_point() or (minus and args[0] is not scores):
            return UNKNOWN
        dtype = torch.promote_types(scores.dtype, addend.dtype) if addend.dim() else scores.dtype
        form = forms.masked(scores._flatout.form, -addend if minus else addend, None)
        return self._noted(func, scores, args, kwargs, form, dtype=dtype)

    def _fill(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.keys() - {"mask", "value"} or args[0] is not scores:
            return UNKNOWN
        args = (*args, *(kwargs[name] for name in ("mask", "value") if name in kwargs))
        return self._masked(func, scores, args, args[1], args[2]) if len(args) == 3 else UNKNOWN

    def _where(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 3 or type(args[0]) not in self.machinery.plain:
            return UNKNOWN
        if args[1] is scores:
            return self._masked(func, scores, args, args[0].logical_not(), args[2])
        return self._masked(func, scores, args, args[0], args[1])

    def _masked(self, func: Any, scores: Any, args: Any, mask: Any, low: Any) -> Any:
        import torch

        if type(mask) not in self.machinery.plain or mask.dtype is not torch.bool:
            return UNKNOWN
        if type(low) in self.machinery.plain:
            if low.dim() or low.requires_grad or low.device.type != "cpu":
                return UNKNOWN
            low = low.item()
        if not isinstance(low, (int, float)):
            return UNKNOWN
        if low != -math.inf and low < torch.finfo(scores.dtype).min:  # raises an error as written
            return UNKNOWN
        return self._noted(
            func, scores, args, {}, forms.masked(scores._flatout.form, mask, float(low))
        )

    def _softmax(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        import torch

        form = scores._flatout.form
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dtype = kwargs.get("dtype")
        if (
            args[0] is not scores
            or dim not in (-1, scores.dim() - 1)
            or form.weights
            or len(args) > 2
        ):
            return UNKNOWN
        if kwargs.keys() - {"dim", "dtype", "_stacklevel"}:
            return UNKNOWN
        named = {"dim": -1, "dtype": dtype}
        dtype = self.machinery.dtype(torch.softmax, scores, scores._flatout.mode, (HERE,), named)
        form = dataclasses.replace(form, weights=True)
        return self._noted(func, scores, args, kwargs, form, dtype=dtype)

    def _cast(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if kwargs or len(args) > 2:
            return UNKNOWN
        if args[0] is not scores:  # another tensor in the precision of the scores
            return args[0].to(scores.device, scores.dtype) if args[1] is scores else UNKNOWN
        names = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
        dtype = args[1] if len(args) == 2 else names.get(func.__name__)
        if isinstance(dtype, torch.Tensor):
            if dtype.device != scores.device:
                return UNKNOWN
            dtype = dtype.dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            return UNKNOWN
        if dtype is scores.dtype:
            return scores
        form = scores._flatout.form
        return self._noted(torch.Tensor.to, scores, (scores, dtype), {}, form, dtype=dtype)

    def _view(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or args[0] is not scores:
            return UNKNOWN
        shape = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        if not all(type(size) is int for size in shape) or shape.count(-1) > 1:
            return UNKNOWN
        if -1 in shape:
            rest = scores.numel() // max(1, -math.prod(shape))
            shape = [rest if size == -1 else size for size in shape]
        form = forms.viewed(scores._flatout.form, tuple(shape))
        return self._noted(func, scores, args, kwargs, form, shape=tuple(shape))

    def _contiguous(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        return UNKNOWN if kwargs or len(args) > 1 else scores

    def _dropout(self, func: Any, scores: Any, args: Any, kwargs: Any) -> Any:
        """CPU kernels have no fused dropout. Random numbers are drawn when the program does."""
        values = dict(zip(("input", "p", "training", "inplace"), args))  # noqa: B905
        values |= kwargs
        values.setdefault("training", values.pop("train", True))
        p, form = values.get("p", 0.5), scores._flatout.form
        if not isinstance(p, (int, float)) or args[0] is not scores:
            return UNKNOWN
        if not values["training"] or p == 0:
            return scores
        cuda = form.q.device.type == "cuda"
        if not (cuda and form.weights and not form.dropout and 0 < p < 1) or values.get("inplace"):
            return UNKNOWN
        return self._noted(func, scores, args, kwargs, dataclasses.replace(form, dropout=float(p)))

    # Weights --------------------------------------------------------------------------------

    def _finish(self, kind: str, item: Any, args: Any) -> Any:
        """The weights times the values: the fused call."""
        import torch

        equation, (a, b) = operators.factors(kind, args)
        pending, v = item._flatout, (b if a is item else a)
        form, dtype = pending.form, pending.mode[2] or item.dtype
        if not form.weights or type(v) not in self.machinery.plain or not v.is_floating_point():
            return UNKNOWN
        if v.device != form.q.device or not (pending.mode[2] or v.dtype is item.dtype):
            return UNKNOWN
        if v.dtype is torch.float64 and dtype is not v.dtype:
            return UNKNOWN
        laid = forms.values(form, v, equation, swapped=b is item)
        if laid is None:
            return UNKNOWN
        for step in pending.step.chain():
            step.check()
        out = forms.fused(form, laid[0], dtype)
        if out is None:
            return UNKNOWN
        pending.used = True
        pending.place.fused += 1
        return out if laid[1] is None else out.permute(laid[1])


@functools.cache
def watch_type() -> Any:
    """The function mode class of a watch."""
    import torch

    class Watch(torch.overrides.TorchFunctionMode):
        def __init__(self, watching: Watching) -> None:
            super().__init__()
            self.watching = watching

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return self.watching.call(func, types, args, kwargs or {})

    return Watch


def watched(place: AttentionModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """A module's call with its attention fused."""
    import torch

    watch = watch_type()
    stack: Any = torch.overrides._get_current_function_mode_stack

    def attend(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # before anything is read that would be guarded
            return call(*args, **kwargs)
        if place.off or (place.stored and not torch.is_grad_enabled()) or not plain():
            return call(*args, **kwargs)
        place.calls += 1
        modes = stack()
        if modes and type(modes[-1]) is watch:  # inside of another module's
            watching = modes[-1].watching
            outer, watching.place = watching.place, place
            try:
                return call(*args, **kwargs)
            finally:
                watching.place = outer
        if not all(type(mode) is torch.utils._device.DeviceContext for mode in modes):
            return call(*args, **kwargs)
        watching = Watching(place)
        with watch(watching):
            output = call(*args, **kwargs)
        watching.close()
        return output

    return attend


def unwatched(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Make a call in which nothing is deferred: compiled code is traced as it is written."""
    import torch

    known, current = machinery(), torch.overrides._get_current_function_mode
    outer, known.aside = known.aside, True
    try:
        if type(current()) is not watch_type():  # type: ignore[no-untyped-call]
            return call(*args, **kwargs)
        args, kwargs = known.resolved(args), known.resolved(kwargs)
        with torch.overrides._pop_mode_temporarily():
            return call(*args, **kwargs)
    finally:
        known.aside = outer
