"""Calls of root models in training, recorded with the gradients that came back at their outputs.

A recorded call can be made again, at the weights that it was made with, as long as the optimizer
has not stepped: the same inputs, buffers and random numbers go in, the same gradients come back at
the outputs. So two ways of running can be compared without the loss function, which may stand
anywhere in the program, and without leaving a trace: gradients go to nobody's `.grad`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from flatout_agent import forward_state, nests

DEVICES = ("cpu", "cuda", "xpu", "mps")


@dataclass
class Recorded:
    """One call, with all that is needed to make it again."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: forward_state.Kept
    autocast: dict[str, Any]
    """Device -> dtype of the autocast regions that the program had open."""
    inputs: list[int]
    """Versions of the inputs ..."""
    weights: list[int]
    """... and of the weights."""
    outputs: list[Any] = field(default_factory=list)
    """Detached: the values of the tensors that require gradients, in order."""
    given: list[Any] = field(default_factory=list)
    """Gradient that came back at each of them; None: none did."""
    outer: bool = False
    """`given` is without what came from other outputs of the same call."""
    twice: bool = False
    """Differentiated with a graph: the loss takes gradients of gradients."""
    random: Any = None
    """State of torch's generator before the call."""
    drew: bool = False
    """The call drew random numbers."""

    @property
    def used(self) -> bool:
        """Whether a backward pass has come through its outputs."""
        return any(gradient is not None for gradient in self.given)

    @property
    def complete(self) -> bool:
        """Whether it was used, and nobody has written into its inputs since."""
        return self.used and self.inputs == _versions(nests.tensors((self.args, self.kwargs)))

    @property
    def refusal(self) -> str | None:
        """Why it cannot be made again now and compared; None: it can."""
        if not self.complete:
            return "its inputs are written to"
        if self.weights != _versions(self.model.parameters()):
            return "its weights are written to before its backward pass"
        if not all(bool(g.isfinite().all()) for g in self.given if g is not None):
            return "its gradients are not finite as written"
        return None


@dataclass
class Made:
    """What came of making a recorded call again."""

    outputs: list[Any]
    gradients: list[Any]
    """Of the parameters, then of the inputs that require them; None where there is none."""
    names: list[str]


def _versions(tensors: Iterable[Any]) -> list[int]:
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _differentiable(nest: Any) -> list[Any]:
    """The tensors that were computed and require gradients, each once."""
    found = {id(t): t for t in nests.tensors(nest) if t.requires_grad and not t.is_leaf}
    return list(found.values())


def _autocast(torch: Any) -> dict[str, Any]:
    return {
        device: torch.get_autocast_dtype(device)
        for device in DEVICES
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    }


def begin(torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Note what is needed to make the call again; the call itself is made after this."""
    before = forward_state.keep(torch, [model])
    inputs, weights = _versions(nests.tensors((args, kwargs))), _versions(model.parameters())
    recorded = Recorded(model, args, kwargs, before, _autocast(torch), inputs, weights)
    recorded.random = torch.get_rng_state()
    return recorded


def finish(torch: Any, recorded: Recorded, output: Any) -> None:
    """Note what came out of the call, and have the gradients noted that come back there."""
    recorded.before.only_changed()
    now = torch.get_rng_state()
    recorded.drew = not torch.equal(recorded.random, now) or _draws_on_device(recorded.model)
    for position, tensor in enumerate(_differentiable(output)):
        recorded.outputs.append(tensor.detach().clone())  # the program may write into it
        recorded.given.append(None)
        _note_gradient(torch, tensor, recorded, position)


def _draws_on_device(model: Any) -> bool:
    """Random numbers of an accelerator are not compared: that would wait for it."""
    if next((p.device.type for p in model.parameters()), "cpu") == "cpu":
        return False
    return any("Dropout" in type(module).__name__ and module.p > 0 for module in model.modules()
               if hasattr(module, "p"))  # fmt: skip


def not_repeatable(torch: Any, model: Any) -> str | None:
    """Why this model's calls are not made again: hooks of the program's would be called, too."""
    everywhere = torch.nn.modules.module
    hooks = [*everywhere._global_forward_hooks.values()]
    hooks += [*everywhere._global_forward_pre_hooks.values()]
    for module in model.modules():
        for name in HOOKS:
            hooks += getattr(module, name).values()
    for parameter in model.parameters():
        hooks += (parameter._backward_hooks or {}).values()
    for hook in hooks:
        owner = getattr(hook, "__module__", None) or type(hook).__module__
        if not str(owner).startswith(("torch.", "flatout")):
            return "the model has hooks of the program's own"
    return None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _note_gradient(torch: Any, tensor: Any, recorded: Recorded, position: int) -> None:
    reference = weakref.ref(recorded)

    def hook(gradient: Any) -> None:
        record = reference()
        if record is None:
            return
        record.twice = record.twice or torch.is_grad_enabled()
        known, fresh = record.given[position], gradient.detach()
        record.given[position] = fresh.clone() if known is None else known + fresh

    tensor.register_hook(hook)


def again(torch: Any, recorded: Recorded, reseed: int | None = None) -> Made:
    """Make the call once more, as the model runs now; the model is left as it is found.

    `reseed`: draw other random numbers than then. Raises whatever the model raises.
    """
    model = recorded.model
    restore = forward_state.keep(torch, [model])
    try:
        recorded.before()
        if reseed is not None:
            forward_state.reseed(torch, model, reseed)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            _as_then(torch, recorded, stack)
            if hasattr(model, "no_sync"):  # DistributedDataParallel: nobody else takes part
                stack.enter_context(model.no_sync())
            return _make(torch, recorded)
    finally:
        restore()


def _as_then(torch: Any, recorded: Recorded, stack: ExitStack) -> None:
    """Open the autocast regions of that time, and leave those of now."""
    for device in _autocast(torch):
        if device not in recorded.autocast:
            stack.enter_context(torch.autocast(device, enabled=False))
    for device, dtype in recorded.autocast.items():
        stack.enter_context(torch.autocast(device, dtype=dtype))


def _make(torch: Any, recorded: Recorded) -> Made:
    inputs: list[Any] = []

    def leaf(tensor: Any) -> Any:
        if not tensor.requires_grad:
            return tensor
        twin = tensor.detach().requires_grad_(True)
        inputs.append(twin)
        return twin.clone()  # no leaf: the model may write into it

    args, kwargs = nests.change(recorded.args, leaf), nests.change(recorded.kwargs, leaf)
    outputs = _differentiable(recorded.model(*args, **kwargs))
    values = [output.detach().clone() for output in outputs]
    if len(outputs) != len(recorded.given):
        raise RuntimeError("the call gives other outputs than before")
    if not recorded.outer:
        _leave_out_inner(torch, recorded, outputs)
    named = [(name, p) for name, p in recorded.model.named_parameters() if p.requires_grad]
    names = [name for name, _ in named] + [f"input {number + 1}" for number in range(len(inputs))]
    wanted = [*(parameter for _, parameter in named), *inputs]
    gradients = _gradients(torch, outputs, recorded.given, wanted, recorded.twice)
    if recorded.twice:
        known = [gradient for gradient in gradients if gradient is not None]
        known = [gradient for gradient in known if gradient.requires_grad]
        directions = [gradient.detach() for gradient in known]
        gradients += _gradients(torch, known, directions, wanted)
        names += [f"{name}, second derivative" for name in names]
    return Made(values, [None if g is None else g.detach() for g in gradients], names)


def _gradients(
    torch: Any,
    outputs: list[Any],
    given: list[Any],
    wanted: list[Any],
    graph: bool = False,
    retain: bool = False,
) -> list[Any]:
    """Gradients of `wanted` where `given` comes back at the outputs."""
    pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None]
    if not pairs or not wanted:
        return [None] * len(wanted)
    return list(
        torch.autograd.grad(
            [output for output, _ in pairs],
            wanted,
            [gradient.to(output.dtype) for output, gradient in pairs],
            retain_graph=graph or retain,
            create_graph=graph,
            allow_unused=True,
        )
    )


def _leave_out_inner(torch: Any, recorded: Recorded, outputs: list[Any]) -> None:
    """Take out of `given` what came from other outputs: of the logits what the loss gave them.

    A model may give its loss beside the logits that it was computed from, or every layer's result.
    """
    recorded.outer = True
    used = [n for n, gradient in enumerate(recorded.given) if gradient is not None]
    later = {n: [m for m in used if m != n and _behind(outputs[m], outputs[n])] for n in used}
    for position in sorted(used, key=lambda n: len(later[n])):
        behind = [n for n in later[position] if recorded.given[n] is not None]
        if not behind:
            continue
        (inner,) = _gradients(
            torch,
            [outputs[n] for n in behind],
            [recorded.given[n] for n in behind],
            [outputs[position]],
            retain=True,
        )
        if inner is None:
            continue
        total = recorded.given[position]
        outer = total - inner.to(total.dtype)
        small = SAME if total.dtype.itemsize >= 4 else LOW_SAME
        nothing = float(outer.float().norm()) <= small * float(total.float().norm())
        recorded.given[position] = None if nothing else outer


SAME = 1e-4
LOW_SAME = 3e-2
"""What is left of a gradient by rounding alone, as a share of it; the second in 16 bits."""


def _behind(output: Any, earlier: Any) -> bool:
    """Whether `output` was computed from `earlier`."""
    target, waiting, seen = earlier.grad_fn, [output.grad_fn], set()
    if target is waiting[0]:
        return False
    while waiting:
        node = waiting.pop()
        if node is target:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False
