"""One training call of a model, recorded as graphs: what it depends on, and what forbids it.

A replay launches the same work on the device, but repeats nothing that Python did besides. So a
forward pass that draws numbers on the host, or leaves other attributes on the model, cannot be
recorded: each replay would use the numbers of the one recorded call.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flatout_agent.speedups import compiled_blocks, forward_state, nests, precision, stand_in

if TYPE_CHECKING:
    import torch

Graphed = Callable[..., Any]
Capture = Callable[[Any, tuple[Any, ...]], Graphed]
"""(a module from tensors to tensors, sample inputs) -> the recorded call of the module."""

Again = Callable[["Sequence[torch.Tensor]", "Sequence[torch.Tensor | None]"], "list[Any]"]
"""(inputs, gradients that arrived at the outputs) -> gradients of inputs and parameters."""

ATTENTION = (
    "flash_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "math_sdp_enabled",
    "cudnn_sdp_enabled",
)
"""Functions that tell which kernels attention may use; the last is not in every torch."""


class NotRecordable(Exception):  # noqa: N818 - a decision with its reason, not an error
    """The call cannot be replayed correctly; the message is the reason shown to the user."""


class Key(NamedTuple):
    """Everything that a recording depends on besides the model itself."""

    inputs: tuple[Any, ...]
    spec: str
    autocast: Any
    settings: tuple[Any, ...]


def settings() -> tuple[Any, ...]:
    """What else chooses the kernels of a call: torch's settings, and its functions that other
    boosts have replaced. A recording keeps to those of its time.
    """
    import torch

    cudnn, attention = torch.backends.cudnn, torch.backends.cuda
    order = getattr(torch._C, "_get_sdp_priority_order", tuple)  # since 2.6
    return (
        precision.matmul_precision(),
        precision.convolution_precision(),
        torch.get_deterministic_debug_mode(),
        *(cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        *(bool(getattr(attention, name, bool)()) for name in ATTENTION),
        *order(),
        stand_in.held(),
    )


class GradientPlace:
    """Memory of a recording in which it leaves a gradient."""

    def __init__(self, gradient: torch.Tensor) -> None:
        """gradient: what is about to go to the program, and as yet to nobody else."""
        self._storage = gradient.untyped_storage()
        self._own = self._tensors() - 1
        self.was_held = False
        """The program has kept such a gradient, so it gets copies."""

    def _tensors(self) -> int:
        import torch

        return int(torch._C._storage_Use_Count(self._storage._cdata))

    def is_held(self) -> bool:
        """Whether a tensor of the program is still in this memory."""
        return self._tensors() > self._own


@dataclass(eq=False)
class Recording:
    """A recorded call, forward and backward pass."""

    key: Key
    graphed: Graphed
    outputs: tuple[Any, list[bool]]
    """The nest that the model returns, and which of its leaves are None."""
    grown: int
    """Bytes of its own device memory."""
    state: list[torch.Tensor]
    """Tensors on the model that its forward pass writes to, and may read."""
    places: dict[int, GradientPlace] = field(default_factory=dict)
    """Addresses at which its backward pass leaves the gradients, and the memory there."""


def record(
    model: torch.nn.Module, call: Graphed, leaves: list[Any], spec: Any, key: Key, capture: Capture
) -> Recording:
    """The recorded call of the model on these arguments. Recording leaves no trace on model and
    generators.

    Raises NotRecordable, and whatever the model or the recording raises.
    """
    device = next(iter(model.parameters())).device
    tensors = [leaf for leaf in leaves if nests.is_tensor(leaf)]
    samples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in tensors)
    whole = as_tensors(model, call, leaves, spec)
    restore, before = forward_state.keep([model]), _Host(model)
    reserved = reserved_bytes(device)
    versions = [(tensor, tensor._version) for tensor in _state(model)]
    try:
        graphed = capture(whole, samples)
        before.compare(_Host(model))
        state = [tensor for tensor, version in versions if tensor._version != version]
    finally:
        restore()
        whole.release()
    grown = max(0, reserved_bytes(device) - reserved)
    return Recording(key, graphed, whole.outputs, grown, state)


def as_tensors(model: torch.nn.Module, call: Graphed, leaves: list[Any], spec: Any) -> Any:
    """The call as a module from tensors to tensors, which can be recorded."""
    import torch

    pytree = torch.utils._pytree
    base: Any = torch.nn.Module

    class Whole(base):  # type: ignore[misc]
        def __init__(self, model: torch.nn.Module, call: Graphed, leaves: list[Any]) -> None:
            super().__init__()
            self.model = model
            self.call: Any = call
            self.slots = [place for place, leaf in enumerate(leaves) if nests.is_tensor(leaf)]
            self.constants = [None if nests.is_tensor(leaf) else leaf for leaf in leaves]
            self.outputs: tuple[Any, list[bool]] | None = None

        def forward(self, *tensors: Any) -> Any:
            filled = list(self.constants)
            for slot, tensor in zip(self.slots, tensors, strict=True):
                filled[slot] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            found, nest = pytree.tree_flatten(self.call(*args, **kwargs))
            # In training nobody reads the cache that Transformers models make in each call: a
            # program that passes it on is found out before its calls are recorded (`_fits`).
            outputs = [None if compiled_blocks.is_cache(item) else item for item in found]
            if not all(nests.is_tensor(item) or item is None for item in outputs):
                raise TypeError("the model returns something other than tensors")
            self.outputs = nest, [item is None for item in outputs]
            return tuple(item for item in outputs if item is not None)

        def release(self) -> None:
            """The recording holds this and must not keep a model that the program drops."""
            self._modules.clear()
            self.call = None

    return Whole(model, call, leaves)


def _state(model: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors on it besides weights. Batch norm only writes to its own in training."""
    import torch

    norms = torch.nn.modules.batchnorm._NormBase
    values = [
        [value for name, value in vars(module).items() if name not in ("_parameters", "_modules")]
        for module in model.modules()
        if not isinstance(module, norms)
    ]
    return [tensor for tensor in nests.tensors(values) if not tensor.is_inference()]


# Memory -------------------------------------------------------------------------------------------


def reserved_bytes(device: torch.device) -> int:
    """Bytes of device memory that torch holds once its unused cache is released."""
    import torch

    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()  # a recording does so, too, so both readings come after it
    return int(torch.cuda.memory_reserved(device))


def is_short_of_memory(device: torch.device, grown: int) -> bool:
    """Whether an unused recording leaves hardly any memory to the program as written."""
    return bool(grown) and _free_bytes(device, grown) < 2 * grown


def takes_too_much(device: torch.device, grown: int) -> bool:
    """Whether a recording has taken more than half of the free memory."""
    return bool(grown) and _free_bytes(device, grown) < grown


def _free_bytes(device: torch.device, grown: int) -> int:
    """Memory left beside a recording of this size: free on the device, or held by torch
    and unused.
    """
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - grown
    return int(free + max(0, unused))


# The host -----------------------------------------------------------------------------------------


class _Host:
    """The host state that a forward pass may change, as it is now."""

    def __init__(self, model: torch.nn.Module) -> None:
        values = [value for module in model.modules() for value in vars(module).values()]
        self.drawn = forward_state.drawn(values)
        self.noted = [mark for module in model.modules() for mark in _notes(module)]

    def compare(self, after: _Host) -> None:
        """Raises NotRecordable if something has changed."""
        if after.drawn != self.drawn:
            raise NotRecordable("the forward pass draws numbers on the host")
        if len(after.noted) != len(self.noted) or not all(map(_same, after.noted, self.noted)):
            raise NotRecordable("the forward pass changes attributes of the model")


def _notes(module: torch.nn.Module) -> Iterator[Any]:
    own = {name: vars(module)[name] for name in vars(module) if name not in forward_state.NOT_NOTES}
    return _marks({**own, "_buffers": module._buffers}, 0)


def _marks(value: Any, depth: int) -> Iterator[Any]:
    """A value that shows whether a note has changed: the object itself if it is no container."""
    if isinstance(value, weakref.ref):  # an LSTM makes new ones if its weights change
        yield weakref.ref
    elif nests.is_tensor(value):
        yield value
        # One on the device may be written to, as a replay does that as well.
        yield value._version if value.device.type == "cpu" and not value.is_inference() else 0
    elif depth > forward_state.DEEPEST or not isinstance(value, (dict, list, tuple, deque, set)):
        yield value
    elif isinstance(value, set):
        yield set(value)
    else:
        yield len(value)
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield name
            yield from _marks(item, depth + 1)


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return (
        type(first) is type(second)
        and isinstance(first, (*forward_state.SIMPLE, set))
        and (first == second)
    )
