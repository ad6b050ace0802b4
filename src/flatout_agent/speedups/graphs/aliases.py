"""A module's forward and backward pass, recorded over aliases of its parameters.

`torch.cuda.make_graphed_callables` records over the parameters themselves. That fails while the
program still holds the loss of its last step, as most programs do. The loss keeps alive the nodes
that add to the parameters' `.grad`, and these belong to the stream on which they were made, not to
the recording's. An alias is a new parameter in the same memory, with a node of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.attach.replacing import replaced
from flatout_agent.speedups.graphs.host_values import HostValues
from flatout_agent.speedups.graphs.recordings import Again, Graphed, NotRecordable

Result = TypeVar("Result")
WARM_UPS = 3
"""Passes before the recording: libraries initialize themselves, and values from the host are
kept."""
AROUND = "a weight is used in another way than by its module"
RECOMPUTES = "the model recomputes its activations (torch.utils.checkpoint)"
PACKS = "the program packs what the backward pass needs (saved_tensors_hooks)"
WRITES = "the model writes to its inputs, which the program may still need"
OTHER_PARAMETERS = "the model has parameters of a kind of their own"


class DeviceRecorder(Protocol):
    """Records a device's work and replays it."""

    def aside(self) -> AbstractContextManager[None]:
        """The context in which work runs before it is recorded."""

    def record(self, work: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Do the work; returns its result and a function that repeats it in the same memory."""


def record(whole: torch.nn.Module, samples: tuple[Any, ...], recorder: DeviceRecorder) -> Graphed:
    """`whole`, a module from tensors to tensors, recorded; `samples` become the places of its
    inputs.

    The result takes tensors like `samples`, and differentiates with respect to them and to the
    module's own parameters. Its `again` makes every backward pass but the first, which overwrites
    what it needs. Raises NotRecordable, and whatever the module or the recorder raises.
    """
    parameters = [p for p in whole.parameters() if p.requires_grad]
    with _aliases(whole) as alias_of:
        inputs = [*samples, *(alias_of[id(p)] for p in parameters)]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        values = HostValues(next(iter(whole.parameters())).device)
        versions = [sample._version for sample in samples]

        def forward() -> tuple[torch.Tensor, ...]:
            with values:
                outputs: tuple[torch.Tensor, ...] = whole(*samples)
            return outputs

        with recorder.aside(), _as_if_recorded():
            for number in range(WARM_UPS):
                outputs = _checked(forward, wanted) if number == 0 else forward()
                given = [torch.ones_like(o) if o.requires_grad else None for o in outputs]
                _gradients(outputs, given, wanted)
                del outputs
        if versions != [sample._version for sample in samples]:
            raise NotRecordable(WRITES)
        outputs, replay_forward = recorder.record(forward)
        found, replay_backward = recorder.record(lambda: _gradients(outputs, given, wanted))
    gradients = iter(found)
    places = [next(gradients) if tensor.requires_grad else None for tensor in inputs]
    made = [output.detach() for output in outputs]
    passes = _Passes(samples, made, given, places, replay_forward, replay_backward, values)

    def replay(*tensors: torch.Tensor, again: Again) -> Any:
        return _Recorded.apply(passes, again, *tensors, *parameters)  # type: ignore[no-untyped-call]

    return replay


def as_written(
    whole: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    arrived: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """Gradients of the inputs, then of the module's own parameters, given those that arrived at its
    outputs. Nothing is replayed.
    """
    parameters = [p for p in whole.parameters() if p.requires_grad]
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
    with torch.enable_grad(), _aliases(whole) as alias_of:
        tensors = [*leaves, *(alias_of[id(p)] for p in parameters)]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        found = iter(_gradients(whole(*leaves), arrived, wanted))
    return [next(found) if tensor.requires_grad else None for tensor in tensors]


@dataclass(eq=False)
class _Passes:
    """Both recorded passes and their places in memory, freed with the last reference."""

    inputs: tuple[torch.Tensor, ...]
    outputs: list[torch.Tensor]
    given: list[torch.Tensor | None]
    """Where the gradient of each output goes, or None if it has none."""
    gradients: list[torch.Tensor | None]
    """Where the gradient of each input, then of each parameter, is left, or None if it has none."""
    replay_forward: Callable[[], None]
    replay_backward: Callable[[], None]
    values: HostValues
    """Held here because a graph does not keep the tensors alive that it reads."""


class _Recorded(torch.autograd.Function):
    """The recorded passes as one node of the program's graph.

    (passes, again, inputs, parameters)
    """

    @staticmethod
    def forward(
        ctx: Any, passes: _Passes, again: Again, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        for place, tensor in zip(passes.inputs, tensors, strict=False):
            if place.data_ptr() != tensor.data_ptr():
                place.copy_(tensor)
        passes.replay_forward()
        fresh = tuple(output.detach() for output in passes.outputs)
        ctx.passes, ctx.again, ctx.is_over = passes, again, False
        # Torch then raises its own errors if they are written to, or if the graph is not retained.
        count = len(passes.inputs)
        inputs = (t.clone() if t.is_inference() else t for t in tensors[:count])
        ctx.save_for_backward(*inputs, *tensors[count:])
        ctx.set_materialize_grads(False)
        pairs = zip(fresh, passes.given, strict=True)
        ctx.mark_non_differentiable(*(output for output, place in pairs if place is None))
        return fresh

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *arrived: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        passes: _Passes = ctx.passes
        if ctx.is_over:
            return (None, None, *ctx.again(ctx.saved_tensors[: len(passes.inputs)], arrived))
        ctx.is_over = True
        for place, gradient in zip(passes.given, arrived, strict=True):
            if place is not None and gradient is not None:
                place.copy_(gradient)
            elif place is not None:
                place.zero_()
        passes.replay_backward()
        # Detached: as they are, the engine would copy each of them on its way to `.grad`.
        left = (None if place is None else place.detach() for place in passes.gradients)
        return (None, None, *left)


def _gradients(
    outputs: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor | None],
    wanted: list[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Gradients of `wanted`, given `given` at the outputs, no two in the same memory."""
    pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None]
    if not pairs or not wanted:
        return [None] * len(wanted)
    arrived = [gradient for _, gradient in pairs]
    found = torch.autograd.grad([o for o, _ in pairs], wanted, arrived, allow_unused=True)
    memory = {_memory(gradient) for gradient in arrived}
    result: list[torch.Tensor | None] = []
    for gradient in found:
        own = gradient
        if own is not None and _memory(own) in memory:  # all terms of a sum have the same gradient
            own = own.clone()
        if own is not None:
            memory.add(_memory(own))
        result.append(own)
    return result


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


@contextlib.contextmanager
def _aliases(whole: torch.nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """Replace the module's parameters by others, keyed by the id of its own; restored at the end.

    There is one for each, so tied parameters stay tied. `setattr` is used because an LSTM keeps a
    list of them.
    """
    alias_of: dict[int, torch.Tensor] = {}
    changed: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
    try:
        for module in list(whole.modules()):
            for name, parameter in list(module._parameters.items()):
                if parameter is None:
                    continue
                if type(parameter) is not torch.nn.Parameter:
                    raise NotRecordable(OTHER_PARAMETERS)
                alias = alias_of.get(id(parameter))
                if alias is None:
                    alias = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
                    alias.__dict__.update(parameter.__dict__)
                    alias_of[id(parameter)] = alias
                changed.append((module, name, parameter))
                setattr(module, name, alias)
        yield alias_of
    finally:
        for module, name, parameter in changed:
            setattr(module, name, parameter)


@contextlib.contextmanager
def _as_if_recorded() -> Iterator[None]:
    """Passes that ask whether they are recorded are told so: warm-ups take the recording's way.

    Transformers leaves out the mask of a batch without padding, except while it is recorded.
    """
    undo = replaced(torch.cuda, "is_current_stream_capturing", lambda: True)
    try:
        yield
    finally:
        undo()


# What would be lost -------------------------------------------------------------------------------


def _checked(
    forward: Callable[[], tuple[torch.Tensor, ...]], wanted: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The outputs. Raises NotRecordable if gradients reach tensors that a recording gives none.

    A weight kept in a list outside the modules has no alias, so it would stop training.
    """
    with _NoRecomputation():  # type: ignore[no-untyped-call]  # torch's own
        outputs = forward()
    known = {id(tensor) for tensor in wanted}
    nodes, seen = [output.grad_fn for output in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("CheckpointFunctionBackward"):
            raise NotRecordable(RECOMPUTES)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            raise NotRecordable(AROUND)
        nodes += [following for following, _ in node.next_functions]
    return outputs


class _NoRecomputation(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Raises NotRecordable where a part of the pass is run again in the backward pass, or Python
    moves what is saved for it: to the host, say, into memory that is free after the recording.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hooks = _saving()
        if hooks is not None:
            recomputes = getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"
            raise NotRecordable(RECOMPUTES if recomputes else PACKS)
        return func(*args, **(kwargs or {}))


def _saving() -> Any:
    """The hooks for tensors saved for the backward pass, or None if there are none."""
    top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    try:
        return top(False)
    except TypeError:  # before torch 2.5 it takes no arguments
        return top()
