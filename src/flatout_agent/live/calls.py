"""Calls of root models in training, recorded with the gradients that came back at their outputs.

A recorded call can be made again, at the weights that it was made with, as long as the optimizer
has not stepped: the same inputs, buffers and random numbers go in, the same gradients come back at
the outputs. So two ways of running can be compared without the loss function, which may be anywhere
in the program. No trace is left: nothing is added to any `.grad`.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import checkpoint

from flatout_agent.attach.chain import is_compiled, is_recorded
from flatout_agent.attach.replacing import replaced
from flatout_agent.boosts import fp16_autocast
from flatout_agent.limits import world_size
from flatout_agent.live.without_dropout import WithoutDropout
from flatout_agent.speedups import forward_state, nests, own_hooks
from flatout_agent.speedups.kept_tensors import attributes

Place = tuple[int, str, Any]
"""A tensor that leaves a call in another way than as its result. Kept by the model: the id of a
module's `__dict__`, the attribute's name, and the key in a list, tuple or dict. Given to a hook of
the program: `(SHOWN, "input" or "output", its number)`."""
SHOWN = -1
MOST_KEPT = 8
"""Of more such tensors than this, only those that no result needs are compared. The others must
have no gradient but that of the results behind them."""
SAMPLES = 1024
"""Entries of a gradient by which that is seen."""
ACCELERATORS = ("cuda", "xpu", "mps")
DEVICES = ("cpu", *ACCELERATORS)
EXCHANGING = {"SyncBatchNorm", "FullyShardedDataParallel", "FSDPModule"}
WRITTEN = "its inputs are written to"


class OtherOutputsError(RuntimeError):
    """Repeating the program's call gives outputs of another kind."""


@dataclass
class RecordedCall:
    """One call, with everything needed to repeat it."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: forward_state.SavedState
    autocast: dict[str, torch.dtype]
    """Device -> dtype of the autocast regions that the program had open."""
    inputs: list[int]
    """Versions of the inputs ..."""
    weights: list[int]
    """... and of the weights."""
    outputs: list[torch.Tensor] = field(default_factory=list)
    """The detached values of the tensors that require gradients, in order. Empty if the call's
    repetition is not compared with them."""
    output_gradients: list[torch.Tensor | None] = field(default_factory=list)
    """The gradient that came back at each output, or None if none did."""
    places: list[Place] = field(default_factory=list)
    """Where the last of these outputs are kept (see `Place`)."""
    shown: own_hooks.Shown = field(default_factory=own_hooks.Shown)
    """What the program's hooks were given, until the call has ended."""
    sampled: dict[Place, torch.Tensor] = field(default_factory=dict)
    """Some entries of the gradients at the tensors that are not compared."""
    outer: bool = False
    """Contributions from other outputs of the same call were removed from `output_gradients`."""
    twice: bool = False
    """The backward pass created a graph: the loss uses gradients of gradients."""
    passes: set[int] = field(default_factory=set)
    """torch's numbers of such passes ..."""
    inner: bool = False
    """... of which one has come to an input."""
    goes_on: bool = False
    """The last of them was the program's call of `backward`, which others may follow."""
    random: list[torch.Tensor] = field(default_factory=list)
    """States of the generators before the call."""
    drew: bool = False
    """The call drew random numbers."""
    has_dropout: bool | None = None
    """Whether a repetition without dropout met any, or None if there was none yet."""
    autocast_cache: bool = True
    """The autocast regions cached the weights that they had cast."""
    copied: bool = False
    """The inputs are copies: the program writes to its own."""
    other_batch: RecordedCall | None = None
    """A call of the same model on another batch."""
    fault: str | None = None
    """Why a gradient that came back could not be kept, or None if all were."""

    @property
    def second_batch(self) -> RecordedCall | None:
        """The call on another batch, or None if there is none that can be repeated."""
        other = self.other_batch
        usable = other is not None and other.complete and other.model is self.model
        return other if usable else None

    @property
    def used(self) -> bool:
        """Whether a backward pass has come through its outputs."""
        return self.fault is not None or any(
            gradient is not None for gradient in self.output_gradients
        )

    @property
    def complete(self) -> bool:
        """Whether the backward pass came and the inputs have not been written to since."""
        now = _versions(nests.tensors((self.args, self.kwargs)))
        return self.fault is None and self.used and self.inputs == now

    @property
    def third(self) -> bool:
        """Whether third derivatives may be used, which the repetition does not give.

        One pass that creates a graph, from an output to an input, makes second ones. A further
        pass may begin at the gradient of the first.
        """
        second = self.inner and len(self.passes) == 1 and not self.goes_on
        return self.twice and not second

    @property
    def refusal(self) -> str | None:
        """Why the call cannot be repeated and compared now, or None if it can."""
        if self.fault is not None:
            return self.fault
        if not self.complete:
            return WRITTEN
        if self.weights != _versions(self.model.parameters()):
            return "its weights are written to before its backward pass"
        if not all(bool(g.isfinite().all()) for g in self.output_gradients if g is not None):
            return "its gradients are not finite as written"
        return None


@dataclass
class RepeatedCall:
    """The results of a repeated call."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    """The gradients of the parameters, then of the inputs that require them; None where there is
    none."""
    names: list[str]


def where_used(recorded: RecordedCall, repeated: RepeatedCall) -> RepeatedCall:
    """The repeated call with zeros in its outputs where no gradient came back."""
    outputs = [
        torch.zeros_like(output) if gradient is None else output.where(gradient != 0, 0.0)
        for output, gradient in zip(repeated.outputs, recorded.output_gradients, strict=True)
    ]
    return replace(repeated, outputs=outputs)


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def differentiable(nest: Any) -> list[torch.Tensor]:
    """The computed tensors that require gradients, each once."""
    tensors = {id(t): t for t in nests.tensors(nest) if t.requires_grad and not t.is_leaf}
    return list(tensors.values())


def _kept(model: torch.nn.Module, shown: own_hooks.Shown) -> dict[Place, torch.Tensor]:
    """The computed tensors that require gradients in attributes of the model's modules, and those
    that were shown to the program's hooks.

    A term of the loss may be kept there instead of being returned.
    """
    found: dict[Place, torch.Tensor] = {}
    for owner, name, value in attributes(model):
        members = nests.members(value)
        for key, member in [(None, value)] if members is None else members:
            if nests.is_tensor(member):
                found[id(owner), name, key] = member
    for name, tensors in (("output", shown.outputs), ("input", shown.inputs)):
        found.update({(SHOWN, name, number): tensor for number, tensor in enumerate(tensors)})
    return {place: t for place, t in found.items() if t.requires_grad and not t.is_leaf}


def kept_beside(
    model: torch.nn.Module, returned: list[torch.Tensor], shown: own_hooks.Shown
) -> tuple[dict[Place, torch.Tensor], dict[Place, torch.Tensor]]:
    """The tensors that a call keeps or shows and does not return: those to compare, and the others.

    To tell the gradient of an activation that is kept from that of the results behind it takes a
    backward pass for each. So of many only those are compared that no result is computed from. A
    hook is rather interested in outputs than in inputs.
    """
    seen, kept = {id(tensor) for tensor in returned}, {}
    for place, tensor in _kept(model, shown).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[place] = tensor
    if not kept:
        return {}, {}
    inside = _graph(returned)
    compared = {place: t for place, t in kept.items() if t.grad_fn not in inside}
    more = {place: t for place, t in kept.items() if place[:2] != (SHOWN, "input")}
    if len(compared | more) <= MOST_KEPT:
        compared |= more
    return compared, {place: t for place, t in kept.items() if place not in compared}


def _autocast() -> dict[str, torch.dtype]:
    return {
        device: torch.get_autocast_dtype(device)
        for device in DEVICES
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    }


def begin(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], copies: bool = False
) -> RecordedCall:
    """Record what is needed to repeat the call, before the call itself is made.

    copies: keep copies of the inputs, for a program that writes to them.
    """
    before = forward_state.keep([model])
    given = nests.tensors((args, kwargs))
    if copies:
        args, kwargs = nests.change(args, _copy), nests.change(kwargs, _copy)
    inputs, weights = _versions(nests.tensors((args, kwargs))), _versions(model.parameters())
    recorded = RecordedCall(model, args, kwargs, before, _autocast(), inputs, weights)
    recorded.autocast_cache = torch.is_autocast_cache_enabled()
    recorded.random = _generator_states(model)
    recorded.copied = copies
    for tensor in given:
        if tensor.requires_grad:
            _note_pass(tensor, recorded, is_input=True)
    return recorded


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _note_pass(tensor: torch.Tensor, recorded: RecordedCall, is_input: bool) -> None:
    """Note which passes that create a graph come to this tensor."""
    reference = weakref.ref(recorded)

    def hook(gradient: torch.Tensor) -> None:
        record = reference()
        if record is not None and torch.is_grad_enabled():
            record.inner = record.inner or is_input
            _note_graph(record)

    handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's own
    # The program may use the tensor in each step.
    weakref.finalize(recorded, handle.remove).atexit = False


def _note_graph(recorded: RecordedCall) -> None:
    """A pass that creates a graph is under way. Others may end at the weights alone."""
    if not recorded.passes:
        for parameter in recorded.model.parameters():
            if parameter.requires_grad:
                _note_pass(parameter, recorded, is_input=False)
    recorded.passes.add(torch._C._current_graph_task_id())


def finish(recorded: RecordedCall, output: Any, values: bool = True) -> None:
    """Record the call's outputs, and hook them to record the gradients that come back there.

    values: keep the outputs, to check whether a repetition gives the same values.
    """
    recorded.before.only_changed()
    now = _generator_states(recorded.model)
    recorded.drew = len(now) != len(recorded.random) or not all(
        map(torch.equal, recorded.random, now)
    )
    returned = differentiable(output)
    kept, others = kept_beside(recorded.model, returned, recorded.shown)
    recorded.shown = own_hooks.Shown()
    recorded.places = list(kept)
    for position, tensor in enumerate([*returned, *kept.values()]):
        if values:
            value = tensor.detach()
            # The program may write into what was returned.
            recorded.outputs.append(value.clone() if position < len(returned) else value)
        recorded.output_gradients.append(None)
        _note_gradient(tensor, recorded, position)
    for place, tensor in others.items():
        _note_sample(tensor, recorded, place)


def _generator_states(model: torch.nn.Module) -> list[torch.Tensor]:
    """States of the generators that a call of this model draws from.

    Dropout need not be a module of that name, so all generators are read. An accelerator's
    generator counts its draws in host memory, so reading its state does not wait for the device.
    """
    devices = forward_state.devices([model])
    on_devices = [forward_state._of_device(device).get_state() for device in devices]
    return [torch.get_rng_state(), *on_devices]


def not_repeatable(model: torch.nn.Module) -> str | None:
    """Why this model's calls are not repeated, or None if they may be."""
    if world_size() > 1:
        kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
        divided = any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
        if divided or kinds & EXCHANGING:  # the other ranks repeat other calls
            return "its calls exchange tensors with other ranks"
    if any(map(is_recorded, model.modules())):
        return "the script replays this model as a CUDA graph, which writes into earlier results"
    compiled = isinstance(model, torch.jit.ScriptModule) or any(map(is_compiled, model.modules()))
    if compiled and own_hooks.any_on(model):
        return "compiled code would call the program's own hooks again"
    if compiled and _replays_cudagraphs(model):
        return "the script's compiled code replays CUDA graphs, which write into earlier results"
    return None


def _replays_cudagraphs(model: torch.nn.Module) -> bool:
    """Whether code of torch.compile may replay CUDA graphs in this model's calls.

    A call between the backward pass and the update begins a new generation of them. That frees the
    memory of the last one's results, which the program's outputs and `.grad` are.
    """
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    on_cuda = any(device.type == "cuda" for device in forward_state.devices([model]))
    if trees is None or not on_cuda:
        return False
    try:
        containers = list(trees.local.tree_manager_containers.values())
        return any(container.tree_manager is not None for container in containers)
    except AttributeError:  # another release, or another thread
        return True


def _note_gradient(tensor: torch.Tensor, recorded: RecordedCall, position: int) -> None:
    reference = weakref.ref(recorded)

    def hook(gradient: torch.Tensor) -> None:
        record = reference()
        if record is None or record.fault is not None:
            return
        if torch.is_grad_enabled():
            record.twice = True
            _note_graph(record)
        total, fresh = record.output_gradients[position], gradient.detach()
        try:
            record.output_gradients[position] = fresh.clone() if total is None else total + fresh
        except RuntimeError as error:  # out of memory: the program's own backward pass goes on
            record.fault = f"its gradients cannot be kept: {type(error).__name__}"
            record.outputs, record.output_gradients = [], [None] * len(record.output_gradients)

    tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's own


def _note_sample(tensor: torch.Tensor, recorded: RecordedCall, place: Place) -> None:
    reference = weakref.ref(recorded)

    def hook(gradient: torch.Tensor) -> None:
        record = reference()
        if record is None or record.fault is not None:
            return
        try:
            fresh, total = _sample(gradient), record.sampled.get(place)
            record.sampled[place] = fresh if total is None else total + fresh
        except RuntimeError as error:  # out of memory: the program's own backward pass goes on
            record.fault = f"its gradients cannot be kept: {type(error).__name__}"

    tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's own


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    """Some entries, in any memory format the same ones."""
    entries = gradient.detach().reshape(-1)
    return entries[:: max(1, len(entries) // SAMPLES)].clone()


def again(recorded: RecordedCall, reseed: int | None = None, still: bool = False) -> RepeatedCall:
    """Repeat the call as the model runs now, and leave the model unchanged.

    reseed: draw other random numbers than the recorded call. still: without dropout. Raises
    whatever the model raises.
    """
    model = recorded.model
    restore = forward_state.keep([model])
    try:
        recorded.before()
        if reseed is not None:
            forward_state.reseed(model, reseed)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            without_dropout = stack.enter_context(WithoutDropout()) if still else None
            shown = stack.enter_context(own_hooks.watch(model, called=False))
            stack.callback(replaced(checkpoint, "CheckpointFunction", _NotReentrant))
            _as_then(recorded, stack)
            for module in model.modules():
                # It must neither add up gradients nor send the first rank's buffers: other ranks
                # may repeat their call more often, or not at all. What is set here is put back with
                # the model's notes.
                if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                    stack.enter_context(module.no_sync())
                    module.require_forward_param_sync = False
            made = _make(recorded, shown)
            if without_dropout is not None:
                recorded.has_dropout = bool(recorded.has_dropout) or without_dropout.met
            return made
    finally:
        restore()


class _NotReentrant:
    """torch's reentrant checkpoint, computed by its other kind.

    The reentrant kind allows `backward` alone, which would add to `.grad`.
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not any(nests.is_tensor(arg) and arg.requires_grad for arg in args):
            with torch.no_grad():  # gradients of its weights are lost, as in the reentrant kind
                return function(*args)
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )


def _as_then(recorded: RecordedCall, stack: ExitStack) -> None:
    """Open the autocast regions of the recorded call, and leave the present ones.

    Autocast caches the weights that it has cast until the outermost region ends, which may be a
    region of the program that is open now. The repeated call must not find these weights, since its
    own may be shifted, and must not leave its own there. A region without a cache would not do:
    code compiled for that differs from the code that the program's calls need.
    """
    torch.clear_autocast_cache()
    stack.callback(torch.clear_autocast_cache)
    cache = recorded.autocast_cache
    for device in _autocast():
        if device not in recorded.autocast:
            stack.enter_context(torch.autocast(device, enabled=False, cache_enabled=cache))
    for device, dtype in recorded.autocast.items():
        stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cache))


def _make(recorded: RecordedCall, shown: own_hooks.Shown) -> RepeatedCall:
    inputs: list[torch.Tensor] = []

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor.clone() if recorded.copied else tensor
        twin = tensor.detach().requires_grad_(True)
        inputs.append(twin)
        return twin.clone()  # no leaf: the model may write into it

    args, kwargs = nests.change(recorded.args, leaf), nests.change(recorded.kwargs, leaf)
    outputs = differentiable(recorded.model(*args, **kwargs))
    if len(outputs) + len(recorded.places) != len(recorded.output_gradients):
        raise OtherOutputsError("the call gives other outputs than before")
    looks = recorded.places or recorded.sampled
    kept = _kept(recorded.model, shown) if looks else {}
    nothing, returned = torch.zeros(()), len(outputs)
    for position, place in enumerate(recorded.places, returned):
        if place not in kept and recorded.output_gradients[position] is not None:
            raise OtherOutputsError("the call keeps other tensors than before")
        outputs.append(kept.get(place, nothing))
    if not recorded.outer:
        _leave_out_inner(recorded, outputs)
        _only_from_results(recorded, outputs, kept)
    for position in range(returned, len(outputs)):
        if recorded.output_gradients[position] is None:  # the loss does not use it
            outputs[position] = nothing
            if recorded.outputs:
                recorded.outputs[position] = nothing
    values = [output.detach().clone() for output in outputs]
    named = [(name, p) for name, p in recorded.model.named_parameters() if p.requires_grad]
    names = [name for name, _ in named] + [f"input {number + 1}" for number in range(len(inputs))]
    targets = [*(parameter for _, parameter in named), *inputs]
    scale = 1.0 if recorded.twice else _scale(recorded.output_gradients)
    given = [_times(gradient, scale) for gradient in recorded.output_gradients]
    gradients = _gradients(outputs, given, targets, recorded.twice)
    differentiable_again = {
        position: gradient
        for position, gradient in enumerate(gradients)
        if recorded.twice and gradient is not None and gradient.requires_grad
    }
    _take_over(gradients)
    gradients = [_times(gradient, 1.0 / scale) for gradient in gradients]
    if recorded.twice:
        directions = [gradients[position] for position in differentiable_again]
        second = _gradients(list(differentiable_again.values()), directions, targets)
        _take_over(second)
        gradients += second
        names += [f"{name}, second derivative" for name in names]
    return RepeatedCall(values, gradients, names)


def _scale(output_gradients: Sequence[torch.Tensor | None]) -> float:
    """A power of two for these, as under fp16-autocast: small ones would vanish in float16.

    It is no larger than the boost's own, and than what makes the largest entry about 1: where that
    overflows, the boost finds a smaller one in its first steps.
    """
    most = fp16_autocast.loss_scale()
    if most == 1.0:
        return 1.0
    dense = [gradient for gradient in output_gradients if gradient is not None and gradient.numel()]
    largest = max((float(gradient.abs().max()) for gradient in dense), default=0.0)
    if not 0.0 < largest < math.inf:
        return 1.0
    return min(most, max(1.0, 2.0 ** -math.frexp(largest)[1]))


def _times(gradient: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    return gradient if gradient is None or factor == 1.0 else gradient * factor


def _take_over(gradients: list[torch.Tensor | None]) -> None:
    """Detach the tensors, and copy those on accelerators: a recorded graph writes into them at each
    replay.
    """
    for position, gradient in enumerate(gradients):
        if gradient is not None:
            detached = gradient.detach()
            gradients[position] = (
                detached.clone() if detached.device.type in ACCELERATORS else detached
            )


def _gradients(
    outputs: Sequence[torch.Tensor],
    output_gradients: Sequence[torch.Tensor | None],
    targets: Sequence[torch.Tensor],
    graph: bool = False,
    retain: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients of `targets`, given `output_gradients` at the outputs."""
    pairs = [(o, g) for o, g in zip(outputs, output_gradients, strict=True) if g is not None]
    if not pairs or not targets:
        return [None] * len(targets)
    return list(
        torch.autograd.grad(
            [output for output, _ in pairs],
            targets,
            [gradient.to(output.dtype) for output, gradient in pairs],
            retain_graph=graph or retain,
            create_graph=graph,
            allow_unused=True,
        )
    )


def _leave_out_inner(recorded: RecordedCall, outputs: list[torch.Tensor]) -> None:
    """Remove from `output_gradients` what came from other outputs, for example from the loss to the
    logits.

    A model may give its loss beside the logits that it was computed from, or every layer's result.
    """
    recorded.outer = True
    used = [n for n, gradient in enumerate(recorded.output_gradients) if gradient is not None]
    graphs = {n: _graph([outputs[n]]) for n in used}
    nodes = {n: outputs[n].grad_fn for n in used}
    later = {
        n: [m for m in used if nodes[m] is not nodes[n] and nodes[n] in graphs[m]] for n in used
    }
    for position in sorted(used, key=lambda n: len(later[n])):
        behind = [n for n in later[position] if recorded.output_gradients[n] is not None]
        if not behind:
            continue
        (inner,) = _gradients(
            [outputs[n] for n in behind],
            [recorded.output_gradients[n] for n in behind],
            [outputs[position]],
            retain=True,
        )
        total = recorded.output_gradients[position]
        if inner is None or total is None:
            continue
        outer = total - inner.to(total.dtype)
        small = SAME if total.dtype.itemsize >= 4 else LOW_SAME
        nothing = float(outer.float().norm()) <= small * float(total.float().norm())
        recorded.output_gradients[position] = None if nothing else outer


def _only_from_results(
    recorded: RecordedCall, outputs: list[torch.Tensor], kept: dict[Place, torch.Tensor]
) -> None:
    """Raise an error if the loss uses a tensor that is kept and not compared."""
    if not recorded.sampled.keys() <= kept.keys():
        raise OtherOutputsError("the call keeps other tensors than before")
    tensors = [kept[place] for place in recorded.sampled]
    gradients = _gradients(outputs, recorded.output_gradients, tensors, retain=True)
    for (place, sample), gradient in zip(recorded.sampled.items(), gradients, strict=True):
        found = torch.zeros_like(sample) if gradient is None else _sample(gradient)
        small = SAME if sample.dtype.itemsize >= 4 else LOW_SAME
        if float((found - sample).float().norm()) > small * float(sample.float().norm()):
            if place[0] == SHOWN:
                raise OtherOutputsError("the results or the loss need the program's own hooks")
            raise OtherOutputsError("the loss uses one of many tensors that the model keeps")


SAME = 1e-4
LOW_SAME = 3e-2
"""The share of a gradient that rounding alone can leave over; the second in 16 bits."""


def _graph(tensors: Iterable[torch.Tensor]) -> set[Any]:
    """All nodes of the autograd graph that these were computed by."""
    nodes, stack = set(), [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack += [following for following, _ in node.next_functions]
    return nodes
