"""Probabilities in float32 where autocast would round them to 16 bits.

Near 1, bfloat16 has steps of 0.4 %: a probability of 0.999 becomes 1, and the gradient of its
example 0. Autocast computes `softmax` and `log_softmax` in float32 on CUDA devices but not on CPUs,
and `sigmoid` nowhere. `log_softmax` is replaced on CPUs in any case, the others only for models
that end in them: elsewhere (gates, attention) they cost more and need it less.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import nests

if TYPE_CHECKING:
    import torch

KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "AutocastMPS"}
"""The dispatch key under which autocast's own choices stand, by type of device."""
ENDS = {"SigmoidBackward0": "sigmoid", "SoftmaxBackward0": "softmax.int"}
"""Nodes of the autograd graph, and torch's names of their functions."""
RESHAPING = frozenset({
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0",
    "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0", "TransposeBackward0",
    "PermuteBackward0", "SelectBackward0", "SliceBackward0", "CloneBackward0", "ToCopyBackward0",
})  # fmt: skip
"""Nodes between such a function and the model's output that change no value."""


class AccurateFunction:
    """Computes one function of torch in float32 under autocast, while it is held."""

    def __init__(self, device: str, name: str) -> None:
        self._key, self._name = KEYS[device], name
        self._library: torch.library.Library | None = None
        self._holders = 0

    def hold(self) -> None:
        """Add a holder."""
        import torch

        self._holders += 1
        if self._holders > 1:
            return
        function, _, overload = self._name.partition(".")
        original = getattr(getattr(torch.ops.aten, function), overload or "default")
        without = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, self._key))

        def accurate(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            rounded = tensor.dtype in (torch.bfloat16, torch.float16)
            with torch._C._ExcludeDispatchKeyGuard(without):
                return original(tensor.float() if rounded else tensor, *args, **kwargs)

        # torch's own functions that say no types:
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # another package has its own under this key
            self._library.impl(self._name, accurate, self._key)  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """Remove a holder."""
        self._holders -= 1
        if not self._holders and self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None


class AccurateEnds:
    """What one model's calls need of these functions, while autocast is put around them."""

    def __init__(self, model: torch.nn.Module, device: str) -> None:
        self._model, self._device = model, device
        self._held: list[AccurateFunction] = []

    def hold(self) -> None:
        """Put what earlier calls of this model have needed in place."""
        always = {"log_softmax.int"} if self._device == "cpu" else set()
        self._add(always | _ends.get(self._model, set()))

    def let_go(self) -> None:
        """Take it back."""
        for function in self._held:
            function.let_go()
        self._held = []

    def look(self, output: Any, dtype: torch.dtype) -> None:
        """Learn from a call's output what the next ones need."""
        rounded = [t for t in nests.tensors(output) if t.dtype is dtype]
        known = _ends.setdefault(self._model, set())
        found = {end for end in map(_end_of, rounded) if end is not None} - known
        known |= found
        self._add(found)

    def _add(self, names: set[str]) -> None:
        import torch

        if hasattr(torch._C.DispatchKey, KEYS.get(self._device, "")):
            functions = [accurate_function(self._device, name) for name in sorted(names)]
            for function in functions:
                function.hold()
            self._held += functions


_ends: weakref.WeakKeyDictionary[torch.nn.Module, set[str]] = weakref.WeakKeyDictionary()
"""The functions that models end in."""


def _end_of(output: torch.Tensor) -> str | None:
    """The function that an output in 16 bits comes from, or None if it is none of `ENDS`."""
    node = output.grad_fn
    while node is not None and node.name() in RESHAPING:
        node = node.next_functions[0][0]
    return None if node is None else ENDS.get(node.name())


@functools.cache
def accurate_function(device: str, name: str) -> AccurateFunction:
    """The instance of this process."""
    return AccurateFunction(device, name)
