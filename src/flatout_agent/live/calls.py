"""Calls of root models in training, recorded with the gradients that came back at their outputs.

A recorded call can be made again, at the weights that it was made with, as long as the optimizer
has not stepped: the same inputs, buffers and random numbers go in, the same gradients come back at
the outputs. So two ways of running can be compared without the loss function, which may stand
anywhere in the program, and without leaving a trace: gradients go to nobody's `.grad`.
"""

from __future__ import annotations

import weakref
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
    before: forward_state.Restore
    autocast: list[tuple[str, Any]]
    versions: list[int]
    outputs: list[Any] = field(default_factory=list)
    """Detached: the values of the tensors that require gradients, in order."""
    given: list[Any] = field(default_factory=list)
    """Gradient that came back at each of them; None: none did."""
    twice: bool = False
    """Differentiated with a graph: the loss takes gradients of gradients."""
    random: Any = None
    """State of torch's generator before the call."""
    drew: bool = False
    """The call drew random numbers."""

    @property
    def complete(self) -> bool:
        """Whether a backward pass has come through its outputs, and the inputs are as they were."""
        return any(gradient is not None for gradient in self.given) and self.untouched

    @property
    def untouched(self) -> bool:
        """Whether nobody has written into its inputs since."""
        return self.versions == _versions((self.args, self.kwargs))


@dataclass
class Made:
    """What came of making a recorded call again."""

    outputs: list[Any]
    gradients: list[Any]
    """Of the parameters, then of the inputs that require them; None where there is none."""
    names: list[str]


def _versions(nest: Any) -> list[int]:
    return [tensor._version for tensor in nests.tensors(nest) if not tensor.is_inference()]


def _differentiable(torch: Any, nest: Any) -> list[Any]:
    return [tensor for tensor in nests.tensors(nest) if tensor.requires_grad]


def begin(torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    """Note what is needed to make the call again; the call itself is made after this."""
    autocast = [
        (device, torch.get_autocast_dtype(device))
        for device in DEVICES
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    ]
    before = forward_state.keep(torch, [model])
    recorded = Recorded(model, args, kwargs, before, autocast, _versions((args, kwargs)))
    recorded.random = torch.get_rng_state()
    return recorded


def finish(torch: Any, recorded: Recorded, output: Any) -> None:
    """Note what came out of the call, and have the gradients noted that come back there."""
    now = torch.get_rng_state()
    recorded.drew = not torch.equal(recorded.random, now) or _draws_on_device(recorded.model)
    for position, tensor in enumerate(_differentiable(torch, output)):
        recorded.outputs.append(tensor.detach().clone())  # the program may write into it
        recorded.given.append(None)
        _note_gradient(torch, tensor, recorded, position)


def _draws_on_device(model: Any) -> bool:
    """Random numbers of an accelerator are not compared: that would wait for it."""
    if next((p.device.type for p in model.parameters()), "cpu") == "cpu":
        return False
    return any("Dropout" in type(module).__name__ and module.p > 0 for module in model.modules()
               if hasattr(module, "p"))  # fmt: skip


def _note_gradient(torch: Any, tensor: Any, recorded: Recorded, position: int) -> None:
    reference = weakref.ref(recorded)

    def hook(gradient: Any) -> None:
        record = reference()
        if record is None:
            return
        record.twice = record.twice or torch.is_grad_enabled()
        known = record.given[position]
        record.given[position] = gradient.detach() if known is None else known + gradient.detach()

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
            torch.manual_seed(reseed)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for device, dtype in recorded.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            if hasattr(model, "no_sync"):  # DistributedDataParallel: nobody else takes part
                stack.enter_context(model.no_sync())
            return _make(torch, recorded)
    finally:
        restore()


def _make(torch: Any, recorded: Recorded) -> Made:
    inputs: list[Any] = []

    def leaf(tensor: Any) -> Any:
        if not tensor.requires_grad:
            return tensor
        twin = tensor.detach().requires_grad_(True)
        inputs.append(twin)
        return twin.clone()  # no leaf: the model may write into it

    args, kwargs = nests.change(recorded.args, leaf), nests.change(recorded.kwargs, leaf)
    outputs = _differentiable(torch, recorded.model(*args, **kwargs))
    if len(outputs) != len(recorded.given):
        raise RuntimeError("the call gives other outputs than before")
    named = [(name, p) for name, p in recorded.model.named_parameters() if p.requires_grad]
    names = [name for name, _ in named] + [f"input {number + 1}" for number in range(len(inputs))]
    pairs = [(o, g) for o, g in zip(outputs, recorded.given, strict=True) if g is not None]
    gradients = torch.autograd.grad(
        [output for output, _ in pairs],
        [*(parameter for _, parameter in named), *inputs],
        [gradient.to(output.dtype) for output, gradient in pairs],
        allow_unused=True,
    )
    return Made([output.detach() for output in outputs], list(gradients), names)
