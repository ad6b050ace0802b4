"""Floating-point operations of the operators that multiply, from the shapes of their inputs.

Counted as torch.utils.flop_counter does: 2 for each multiply-add, attention without its softmax
and as if masks saved nothing.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache

Shape = list[int]
PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::dot": (0, 1),
}
LINEARS = {"aten::mkldnn_linear", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"}
ATTENTION = re.compile(r"^aten::_scaled_dot_product_(?!attention_math|fused)\w*attention\w*$")
OTHERS = re.compile(rf"aten::convolution(_backward)?$|{ATTENTION.pattern}")
BACKWARD_OF_ATTENTION = 2.5
"""Five products instead of two."""


def counts(name: str) -> bool:
    """Whether calls of this operator are counted."""
    return name in PRODUCTS or name in LINEARS or bool(OTHERS.match(name))


def is_attention(name: str) -> bool:
    """Whether this operator is fused attention."""
    return bool(ATTENTION.match(name))


@lru_cache(maxsize=100_000)
def of_operator(name: str, shapes: str, concrete: str) -> int:
    """Operations of one call; 0 if none or if shapes are unknown. `shapes`: as in Recording."""
    try:
        return _count(name, inputs(shapes), concrete)
    except (ValueError, IndexError, TypeError):
        return 0


def inputs(shapes: str) -> list[Shape]:
    """Shape of each input, empty if it is not a tensor. Raises ValueError for any other text."""
    return [[int(size) for size in text.split("x")] if text else [] for text in shapes.split(", ")]


def _count(name: str, inputs: list[Shape], concrete: str) -> int:
    if name in PRODUCTS:
        left, right = (inputs[number] for number in PRODUCTS[name])
        if not left or not right:
            return 0
        return 2 * math.prod(left) * (right[-1] if len(right) > 1 else 1)
    if name in LINEARS:
        return 2 * math.prod(inputs[0]) * inputs[1][0]
    if name == "aten::convolution":
        # Forward pass only. values: ..., stride, padding, dilation, transposed, ..., groups.
        image = inputs[0]
        weight = inputs[1]
        values = _values(concrete)
        kernel = weight[2:]
        if len(values) > 6 and values[6] == "True":
            return 2 * math.prod(image) * weight[1] * math.prod(kernel)
        if len(values) <= 5:
            return 0
        stride, padding, dilation = (
            [int(number) for number in re.findall(r"-?\d+", text)] for text in values[3:6]
        )
        output = 1
        for axis, size in enumerate(image[2:]):
            pad, step, gap = (
                numbers[axis] if axis < len(numbers) else numbers[-1]
                for numbers in (padding, stride, dilation)
            )
            output *= (size + 2 * pad - gap * (kernel[axis] - 1) - 1) // step + 1
        return 2 * image[0] * output * math.prod(weight)
    if name == "aten::convolution_backward":
        # Counted once for the input's gradient and once for the weight's.
        values = _values(concrete)
        result, image, weight = inputs[:3]
        transposed = len(values) > 7 and values[7] == "True"
        moving = image if transposed else [result[0], *result[2:], 1]
        once = 2 * math.prod(moving) * math.prod(weight[1:] if transposed else weight)
        gradient_flags = values[-1].strip("[]").split(",")[:2] if values else []
        return once * (
            sum(flag.strip() == "True" for flag in gradient_flags)
            if len(gradient_flags) == 2
            else 2
        )
    if is_attention(name):
        backward = "backward" in name
        query, key, value = inputs[1:4] if backward else inputs[:3]
        forward = 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
        return int(forward * (BACKWARD_OF_ATTENTION if backward else 1))
    return 0


def _values(concrete: str) -> list[str]:
    values = json.loads(concrete) if concrete else []
    return [str(value) for value in values]
