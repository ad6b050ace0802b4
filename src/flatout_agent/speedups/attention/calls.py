"""Operations on attention scores, deferred until it is known what they are used for.

While a watch is on, a product of queries and keys returns a deferred tensor: one without data that
records the operations on it. If they turn out to be attention, a fused kernel computes the product
with the values, and the scores are never computed. If anything else is needed from it, the recorded
operations run in their order: the result has the same bits as without the watch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups.attention.forms import Form

if TYPE_CHECKING:
    import torch

HERE = object()
"""Among the arguments of a deferred operation: the result of the one before it."""


class DeferredStep:
    """A deferred operation, and the one before it."""

    __slots__ = ("args", "before", "func", "kwargs", "real", "versions")

    def __init__(self, before: DeferredStep | None, func: Any, args: Any, kwargs: Any) -> None:
        self.before, self.func, self.args, self.kwargs = before, func, args, kwargs
        self.real: Any = None
        self.versions = [_version(item) for item in (*args, *kwargs.values())]

    def value(self) -> Any:
        """The operation's result, computed now unless it was before."""
        if self.real is None:
            before = None if self.before is None else self.before.value()
            self.check()
            args = [before if item is HERE else item for item in self.args]
            self.real = self.func(*args, **self.kwargs)
            self.before, self.args, self.kwargs, self.versions = None, (), {}, []
        return self.real

    def check(self) -> None:
        """Raise RuntimeError if an operand has been written to since."""
        if self.versions != [_version(item) for item in (*self.args, *self.kwargs.values())]:
            raise RuntimeError("a factor of attention scores was modified by an inplace operation")

    def chain(self) -> Iterator[DeferredStep]:
        """The step itself and those before it that have not been computed."""
        step: DeferredStep | None = self
        while step is not None and step.real is None:
            yield step
            step = step.before


def _version(tensor: Any) -> int:
    if not hasattr(tensor, "is_inference") or tensor.is_inference():
        return 0
    return int(tensor._version)


@dataclass(eq=False)
class AttentionModule:
    """A module that computes attention, and what deferring it led to."""

    calls: int = 0
    fused: int = 0
    wasted: int = 0
    """Fused calls whose weights were needed nevertheless."""
    off: bool = False
    """Deferring its operations gains nothing."""
    stored: bool = False
    """Without gradients its weights are stored: to be computed anyway."""
    storing: bool = False
    """The same, effective from the next step on."""

    def settle(self) -> None:
        """A step has ended."""
        self.stored = self.storing


@dataclass(eq=False)
class Pending:
    """What is known of a deferred tensor."""

    step: DeferredStep
    form: Form
    mode: tuple[Any, ...]
    """Gradient and autocast modes when its operations were deferred."""
    place: AttentionModule
    used: bool = False
    """The fused kernel was called with it."""
    item: weakref.ref[Any] | None = None
    """The tensor; None: it has been computed."""


class TorchParts:
    """The classes that need torch, and the state that all watches share."""

    def __init__(self) -> None:
        import torch

        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.deferred = _deferred(self)
        self.lazy: list[weakref.ref[Pending]] = []
        """Weights that outlived their module's call and have not been computed."""
        self.aside = False
        """Compiled code runs, parts of it as written maybe: nothing is deferred in it."""
        self._dtypes: dict[Any, Any] = {}

    def mode(self, device: str) -> tuple[Any, ...]:
        """What determines how an operation is computed, besides its arguments."""
        import torch

        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, pending: Pending) -> Any:
        """A deferred tensor."""
        import torch

        deferred = torch.Tensor._make_wrapper_subclass(
            self.deferred, shape, dtype=dtype, device=pending.form.q.device
        )
        deferred._flatout = pending
        pending.item = weakref.ref(deferred)
        return deferred

    def dtype(self, func: Any, tensor: Any, mode: Any, args: Any = (), named: Any = None) -> Any:
        """The dtype that an operation returns, found by running it on a tensor of one element."""
        import torch

        key = (func, tensor.dtype, tensor.device.type, mode, *args, *(named or {}).items())
        dtype = self._dtypes.get(key)
        if dtype is None:
            tiny = torch.ones((1, 1, 1), dtype=tensor.dtype, device=tensor.device)
            args = [tiny if item is HERE else item for item in args]
            dtype = self._dtypes[key] = func(*args, **(named or {})).dtype
        return dtype

    def resolve(self, item: Any) -> Any:
        """Turn a deferred tensor, for everyone who holds it, into the tensor that it stands for."""
        import torch

        if type(item) is not self.deferred:
            return item
        pending: Pending = item._flatout
        if pending.used and pending.mode[0] and pending.item is not None:
            pending.place.wasted += 1
        with torch._C.DisableTorchFunction():  # this may come from inside of a watch
            with _Mode(pending.form.q.device.type, pending.mode):
                real = pending.step.value()
            pending.item = None
            # Only what nobody holds below Python can be exchanged.
            if item._use_count() != 1 or real._use_count() != 1 or weakref.getweakrefs(item):
                return real
            del item._flatout
            torch.utils.swap_tensors(item, real)  # type: ignore[no-untyped-call]
        pending.step.real = item
        return item

    def resolved(self, nest: Any) -> Any:
        """Arguments of a call, with tensors in place of deferred ones."""
        if type(nest) is self.deferred:
            return self.resolve(nest)
        if type(nest) in (list, tuple):
            return type(nest)([self.resolved(item) for item in nest])
        if type(nest) is dict:
            return {key: self.resolved(item) for key, item in nest.items()}
        return nest

    def resolve_written(self, refs: list[weakref.ref[Pending]], written: Any) -> None:
        """Compute those that depend on a tensor that is about to be written to."""
        if type(written) not in self.plain:
            return
        memory = _memory(written)
        for pending in _alive(refs):
            used = [item for step in pending.step.chain() for item in step.args]
            if any(type(item) in self.plain and _memory(item) == memory for item in used):
                self.resolve_all([weakref.ref(pending)])

    def resolve_all(self, refs: list[weakref.ref[Pending]]) -> None:
        """Compute all of these that are still referenced."""
        for pending in _alive(refs):
            if pending.item is not None:
                self.resolve(pending.item())

    def close(self, opened: list[weakref.ref[Pending]]) -> None:
        """A module's call has ended: compute what it returned, unless it is unlikely to be read."""
        self.lazy = [ref for ref in self.lazy if ref() is not None]
        for pending in _alive(opened):
            if pending.item is None:
                continue
            if pending.used and not pending.mode[0]:
                pending.place.storing = True
            if pending.used and self._can_wait(pending):
                self.lazy.append(weakref.ref(pending))
            else:
                self.resolve(pending.item())

    def _can_wait(self, pending: Pending) -> bool:
        """Whether the weights can be computed later from what they were to be computed from.

        Nobody writes to a tensor that a backward pass needs. Masks are copied.
        """
        if not pending.mode[0] or pending.form.dropout:
            return False
        size = pending.form.q.numel()
        for step in pending.step.chain():
            for place, item in enumerate(step.args):
                if type(item) not in self.plain or _root(item).grad_fn is not None:
                    continue
                if step.before is None or item.requires_grad or item.numel() > size:
                    return False
                step.args = (*step.args[:place], item.clone(), *step.args[place + 1 :])
            step.versions = [_version(item) for item in (*step.args, *step.kwargs.values())]
        return True


def _alive(refs: list[weakref.ref[Pending]]) -> list[Pending]:
    pendings = [ref() for ref in refs]
    return [pending for pending in pendings if pending is not None]


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().data_ptr() if str(tensor.layout) == "torch.strided" else None


def _root(tensor: Any) -> Any:
    return tensor if tensor._base is None else tensor._base


class _Mode:
    """Restores gradient and autocast modes; free of cost where they have not changed."""

    def __init__(self, device: str, mode: tuple[Any, ...]) -> None:
        import torch

        self.stack: list[Any] = []
        grad, inference, dtype = mode
        if machinery().mode(device) != mode:
            self.stack = [
                torch.inference_mode(inference),
                torch.set_grad_enabled(grad) if not inference else torch.no_grad(),
                torch.autocast(device, dtype=dtype, enabled=dtype is not None),
            ]

    def __enter__(self) -> None:
        for context in self.stack:
            context.__enter__()

    def __exit__(self, *exception: Any) -> None:
        for context in reversed(self.stack):
            context.__exit__(*exception)


def _deferred(machinery: TorchParts) -> Any:
    """The class of deferred tensors: any use except a query of its form computes the tensor."""
    import torch

    forms = form_queries()

    def on_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in forms:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*machinery.resolved(args), **machinery.resolved(kwargs or {}))

    def on_dispatch(cls: Any, func: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"attention scores that are not computed yet reached {func}")

    def reduce(self: Any, protocol: Any) -> Any:
        return machinery.resolve(self).__reduce_ex__(protocol)

    def deepcopy(self: Any, memo: Any) -> Any:
        return machinery.resolve(self).__deepcopy__(memo)

    members = {
        "__torch_function__": classmethod(on_function),
        "__torch_dispatch__": classmethod(on_dispatch),
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
    }
    return type("Deferred", (torch.Tensor,), members)


def form_queries() -> frozenset[Any]:
    """What a tensor can be asked without its data."""
    import torch

    tensor = torch.Tensor
    getters: list[Any] = [tensor.shape, tensor.dtype, tensor.device, tensor.ndim, tensor.is_cuda]
    methods = [tensor.size, tensor.dim, tensor.ndimension, tensor.numel, tensor.__len__]
    queries = [tensor.is_floating_point, torch.is_floating_point, torch.numel]
    return frozenset([*(getter.__get__ for getter in getters), *methods, *queries])


def plain() -> bool:
    """Nothing traces, compiles, transforms or checks the computation."""
    import torch

    return not (
        machinery().aside
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.is_anomaly_enabled()
        or torch.autograd.forward_ad._current_level >= 0
    )


@functools.cache
def machinery() -> TorchParts:
    """The instance of this process."""
    return TorchParts()


class Guarded:
    """Hands computed tensors to custom autograd functions, which take tensors as they are.

    Everything else in torch asks a tensor's class first.
    """

    def __init__(self) -> None:
        import torch

        self.holders = 0
        self.utils = torch._functorch.utils
        self.original = self.utils.unwrap_dead_wrappers
        known = machinery()

        @functools.wraps(self.original)
        def unwrap_dead_wrappers(args: Any) -> Any:
            return self.original(known.resolved(tuple(args)))

        self.replacement = unwrap_dead_wrappers

    def hold(self) -> None:
        self.holders += 1
        if self.utils.unwrap_dead_wrappers is self.original:
            self.utils.unwrap_dead_wrappers = self.replacement

    def let_go(self) -> None:
        self.holders -= 1
        if self.holders:
            return
        known = machinery()
        known.resolve_all(known.lazy)
        known.lazy = []
        if self.utils.unwrap_dead_wrappers is self.replacement:
            self.utils.unwrap_dead_wrappers = self.original

    @functools.cached_property
    def works(self) -> bool:
        """Whether custom functions really pass through this in this version of torch."""
        import torch

        types: list[Any] = []

        class Look(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, tensor_in: Any) -> Any:
                types.append(type(tensor_in))
                return tensor_in.detach()

        self.hold()
        with torch.no_grad():
            tensor = torch.ones(1, 1, 1)
            form = Form(tensor, tensor, (1, 1, 1))
            state = machinery()
            step = DeferredStep(None, torch.bmm, (tensor, tensor), {})
            pending = Pending(step, form, state.mode("cpu"), AttentionModule())
            Look.apply(  # type: ignore[no-untyped-call]
                state.make((1, 1, 1), tensor.dtype, pending)
            )
        self.let_go()
        return types == [torch.Tensor]
