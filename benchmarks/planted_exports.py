"""Wrong builds and sound ones, from the outputs of a right one: the guard must tell them apart.

Each takes `run`, a function from input arrays to output arrays, and returns another such function.
`WRONG` has, for each, the precisions under which it must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

Run = Callable[[list[Any]], list[Any]]
BOTH = ("exact", "rounding")


def scaled(run: Run) -> Run:
    """A wrong scale, as of a batch norm that was folded with another epsilon."""
    return lambda inputs: [output * numpy.float32(1.03) for output in run(inputs)]


def biased_channel(run: Run) -> Run:
    """The bias of one channel is another one's (ResNet-50 as ONNX, once)."""

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = [output.copy() for output in run(inputs)]
        outputs[0][:, 0] += 0.3 * numpy.abs(outputs[0]).max()
        return outputs

    return wrong


def swapped_channels(run: Run) -> Run:
    """Two classes change places."""

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = [output.copy() for output in run(inputs)]
        outputs[0][:, [0, 1]] = outputs[0][:, [1, 0]]
        return outputs

    return wrong


def shuffled_rows(run: Run) -> Run:
    """Rows of a batch come back in another order."""
    return lambda inputs: [numpy.roll(output, 1, axis=0) for output in run(inputs)]


def first_row_everywhere(run: Run) -> Run:
    """Batch 1 was baked in: every row gets the first one's result."""
    return lambda inputs: [numpy.repeat(output[:1], len(output), axis=0) for output in run(inputs)]


def last_row_lost(run: Run) -> Run:
    """The last row of a batch is left out and comes back as zeros."""

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = [output.copy() for output in run(inputs)]
        for output in outputs:
            if len(output) > 1:
                output[-1] = 0
        return outputs

    return wrong


def stale(run: Run) -> Run:
    """It answers with the outputs of the call before, where they have the same shape."""
    before: list[Any] = []

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = run(inputs)
        same = before and all(a.shape == b.shape for a, b in zip(before, outputs, strict=True))
        answer = list(before) if same else outputs
        before[:] = outputs
        return answer

    return wrong


def one_nan(run: Run) -> Run:
    """A single value is NaN."""

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = [output.copy() for output in run(inputs)]
        outputs[0].reshape(-1)[-1] = numpy.nan
        return outputs

    return wrong


def wrong_alone(run: Run) -> Run:
    """Right in a batch, wrong for a single row."""
    return lambda inputs: [
        output * numpy.float32(0.5) if len(output) == 1 else output for output in run(inputs)
    ]


def wrong_in_batch(run: Run) -> Run:
    """Right for a single row, wrong in a batch."""
    return lambda inputs: [
        output + numpy.float32(0.1) * numpy.abs(output).max() if len(output) > 1 else output
        for output in run(inputs)
    ]


def half_precision_inside(run: Run) -> Run:
    """bfloat16 without being asked (OpenVINO, left alone): only wrong where exact was promised."""
    return lambda inputs: [_bfloat16(output) for output in run(inputs)]


def other_shape(run: Run) -> Run:
    """An axis of size one too many."""
    return lambda inputs: [output[..., None] for output in run(inputs)]


def other_dtype(run: Run) -> Run:
    """float64 where the model gives float32."""
    return lambda inputs: [output.astype(numpy.float64) for output in run(inputs)]


def squashed(run: Run) -> Run:
    """A softmax more than the model has: the same best class, other values."""

    def wrong(inputs: list[Any]) -> list[Any]:
        found = []
        for output in run(inputs):
            powers = numpy.exp(output - output.max(axis=1, keepdims=True))
            found.append((powers / powers.sum(axis=1, keepdims=True)).astype(output.dtype))
        return found

    return wrong


def constant(run: Run) -> Run:
    """The same answer for whatever comes in."""
    kept: dict[Any, list[Any]] = {}

    def wrong(inputs: list[Any]) -> list[Any]:
        shape = tuple(item.shape for item in inputs)
        return kept.setdefault(shape, run(inputs))

    return wrong


def zeros(run: Run) -> Run:
    """Nothing was computed at all."""
    return lambda inputs: [numpy.zeros_like(output) for output in run(inputs)]


def overwrites(run: Run) -> Run:
    """It writes into its caller's arrays."""

    def wrong(inputs: list[Any]) -> list[Any]:
        outputs = run(inputs)
        inputs[0] *= 0
        return outputs

    return wrong


def noisy(run: Run) -> Run:
    """Dropout was left on: random noise on every output."""
    draw = numpy.random.default_rng(0)
    return lambda inputs: [
        (output * draw.choice([0.0, 1 / 0.9], output.shape, p=[0.1, 0.9])).astype(output.dtype)
        for output in run(inputs)
    ]


WRONG: dict[Callable[[Run], Run], tuple[str, ...]] = {
    scaled: BOTH,
    biased_channel: BOTH,
    swapped_channels: BOTH,
    shuffled_rows: BOTH,
    first_row_everywhere: BOTH,
    last_row_lost: BOTH,
    stale: BOTH,
    one_nan: BOTH,
    wrong_alone: BOTH,
    wrong_in_batch: BOTH,
    half_precision_inside: ("exact",),
    other_shape: BOTH,
    other_dtype: BOTH,
    squashed: BOTH,
    constant: BOTH,
    zeros: BOTH,
    overwrites: BOTH,
    noisy: BOTH,
}


def same(run: Run) -> Run:
    """The same bits."""
    return run


def reordered(run: Run) -> Run:
    """Sums in another order: an error of the last bits."""
    draw = numpy.random.default_rng(1)
    return lambda inputs: [
        (output * (1 + 2e-7 * draw.standard_normal(output.shape))).astype(output.dtype)
        for output in run(inputs)
    ]


def from_float64(run: Run) -> Run:
    """Computed more exactly: rounded once at the end."""
    return lambda inputs: [
        (output.astype(numpy.float64) * (1 + 1e-7)).astype(output.dtype) for output in run(inputs)
    ]


def copied(run: Run) -> Run:
    """Outputs that are views of a larger buffer."""
    return lambda inputs: [
        numpy.concatenate([output, output])[: len(output)] for output in run(inputs)
    ]


def rounded_inside(run: Run) -> Run:
    """bfloat16 inside, float32 outside."""
    return half_precision_inside(run)


SOUND: dict[Callable[[Run], Run], tuple[str, ...]] = {
    same: BOTH,
    reordered: BOTH,
    from_float64: BOTH,
    copied: BOTH,
    rounded_inside: ("rounding",),
}


def _bfloat16(values: Any) -> Any:
    """Rounded to 8 bits of mantissa."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(numpy.float32)
