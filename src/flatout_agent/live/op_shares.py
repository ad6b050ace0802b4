"""Where the time of a step goes, from one call of the model repeated operation by operation.

The shares decide the order in which boosts are tried. They are measured only on a CPU: accelerators
lag behind the program, so a clock around an operation says nothing.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.attach.chain import compiled_by_user
from flatout_agent.live import calls
from flatout_agent.live.checks import Checks
from flatout_agent.live.state import Tick

KINDS = {
    "attention": r"_?scaled_dot_product|_flash_attention|_efficient_attention",
    "products": r"(add|b|addb|badd|baddb)?(mm|mv)(_|$)|dot$|(mkldnn_)?linear|mkldnn_rnn",
    "convolutions": r"(mkldnn_|_)?convolution|_?slow_conv|conv_depthwise",
    "dropout": r"bernoulli|native_dropout",
    "norms": r"(native_|cudnn_|_)?(batch|layer|group)_norm|_fused_rms_norm",
    "softmax": r"_softmax|_log_softmax|nll_loss",
    "embeddings": r"embedding",
    "slices": r"(select|slice)_backward",
}
"""Kind -> prefixes of its operations' names; all other operations are `others`."""
NAMES = (*KINDS, "sparse", "others", "optimizer")


@dataclass
class Operations:
    """The operations of forward and backward passes."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By kind; empty if unknown."""
    number: int = 0


def of_a_unit(checks: Checks) -> Generator[None, Tick, Operations]:
    """The operations in the models' part of one unit."""
    total = Operations()

    def add(recorded: list[calls.RecordedCall]) -> None:
        for call in recorded:
            of_call = measure(call)
            total.number += of_call.number
            for kind, seconds in of_call.seconds.items():
                total.seconds[kind] = total.seconds.get(kind, 0.0) + seconds

    yield from checks.give_calls(add)
    return total


def measure(recorded: calls.RecordedCall) -> Operations:
    """The operations of one forward and backward pass."""
    model = recorded.model
    first = next(iter(model.parameters()), None)
    if first is None or first.device.type != "cpu" or compiled_by_user(model):
        return Operations()
    clock: Any = _Clock()  # a context manager without types
    with clock:
        calls.again(recorded)
    done: Operations = clock.done
    return done


class Updates:
    """The time of a step's weight updates, over all optimizers."""

    def __init__(self) -> None:
        self._began = self._this_step_s = 0.0
        self._last_s: deque[float] = deque(maxlen=20)

    def begin(self) -> None:
        """An optimizer's step begins ..."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """... and has ended."""
        self._this_step_s += time.perf_counter() - self._began

    def step(self) -> None:
        """The step is over."""
        self._last_s.append(self._this_step_s)
        self._this_step_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in the median of the last steps."""
        return statistics.median(self._last_s) if self._last_s else 0.0


def shares(seconds: Mapping[str, float], step_s: float) -> dict[str, float]:
    """The share of a step that takes `step_s` seconds, at most 1."""
    whole_s = max(step_s, sum(seconds.values()))
    return {kind: seconds.get(kind, 0.0) / whole_s for kind in NAMES} if whole_s > 0 else {}


def kind_of(name: str) -> str:
    """The kind of `aten::name`."""
    for kind, pattern in KINDS.items():
        if re.match(pattern, name):
            return kind
    return "others"


class _Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Times each operation below autograd, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.done = Operations()
        self._last = ""
        """The name of the last operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if any(getattr(arg, "is_sparse", False) for arg in args):
            kind = "sparse"
        elif name == "copy_" and self._last == "new_empty_strided":
            kind = "slices"  # the gradient of a tensor of which a slice was written
        else:
            kind = kind_of(name)
        self._last = name
        seconds = self.done.seconds
        seconds[kind] = seconds.get(kind, 0.0) + time.perf_counter() - began
        self.done.number += 1
        return result
