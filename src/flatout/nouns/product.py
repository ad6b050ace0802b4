"""ProductCalls: one of a job's products or convolutions, and its time in other dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProductCalls:
    """Calls of one operator with the same inputs, in one step. Source: the trace with shapes."""

    name: str
    """aten::mkldnn_convolution."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each input; empty if it is not a tensor."""
    dtypes: tuple[str, ...]
    """Each input's type as the trace names it: float, c10::BFloat16; others are not tensors."""
    values: tuple[str, ...]
    """The values of inputs that are not tensors."""
    calls: float
    """Calls per step."""
    ms: float
    """Milliseconds per step."""
    backward: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of one call repeated alone, by variant: now, bfloat16, channels-last,
    bfloat16-channels-last. Empty if not measured."""
