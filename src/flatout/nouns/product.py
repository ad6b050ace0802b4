"""ProductCalls: one of a job's products or convolutions, and what it takes in other dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProductCalls:
    """Calls of one operator with the same inputs, in one step. Source: the trace with shapes."""

    name: str
    """aten::mkldnn_convolution."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each input, empty if it is no tensor."""
    dtypes: tuple[str, ...]
    """Each input's type in the trace's words: float, c10::BFloat16; others are no tensors."""
    values: tuple[str, ...]
    """The values of the inputs that are no tensors."""
    calls: float
    """A step."""
    ms: float
    """A step."""
    backward: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """Of one call made again alone, by variant: now, bfloat16, channels-last,
    bfloat16-channels-last. Empty: not measured."""
