"""The least bytes that operators must read and write, from the shapes and dtypes of their inputs.

Each input is read once and the result written once, as if cached data had to come from memory.
Outputs are not in a trace: their shapes follow from the inputs. Temporary results inside an
operator are not counted.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from flatout.profiling.trace import flops
from flatout.profiling.trace.intervals import Nest
from flatout.profiling.trace.recording import Flags, Ints
from flatout.profiling.trace.widths import USUAL, width

WRITES_ONLY = re.compile(r"^aten::(fill_|zero_|normal_|uniform_|bernoulli_|random_)$")
COPIES = re.compile(r"^aten::copy_$")
"""The target is the first of the inputs."""
COPYING = re.compile(r"^aten::(_to_copy|to|clone|contiguous)$")
"""Their output may have another dtype: the copy inside them shows it."""
IN_PLACE = re.compile(r"^aten::(?!_fused_)\w+[^_]_(\.\w+)?$")
FUSED = re.compile(r"^aten::_fused_(adam|adamw|sgd|adagrad)_$")
LOOKS_UP = re.compile(r"^aten::(embedding|index_select)$")
SHRINKS = re.compile(
    r"^aten::(sum|mean|max|min|amax|amin|argmax|argmin|any|all|prod|norm|linalg_vector_norm|var|std"
    r"|nll_loss\w*_forward|_foreach_norm|mse_loss|local_scalar_dense|_local_scalar_dense|topk"
    r"|max_pool2d\w*|avg_pool2d|_?adaptive_avg_pool2d)$"
)
"""Their output is small compared with their input."""


@lru_cache(maxsize=100_000)
def of_operator(name: str, shapes: str, dtypes: str, concrete: str) -> int:
    """Bytes of one call; 0 if shapes are unknown. `shapes`, `dtypes`: as in a Recording."""
    try:
        inputs = flops.inputs(shapes)
    except ValueError:
        return 0
    kinds = dtypes.split(", ") if dtypes else []
    input_widths = [width(kind) for kind in kinds]
    if len(input_widths) == len(inputs):
        widths = [element_width or 0 for element_width in input_widths]
    else:  # lists of tensors are expanded only in the shapes
        widths = [
            max((element_width for element_width in input_widths if element_width), default=USUAL)
        ] * len(inputs)
    input_bytes = [
        math.prod(shape) * element_width
        for shape, element_width in zip(inputs, widths, strict=True)
        if shape
    ]
    if not input_bytes:
        return 0
    if LOOKS_UP.match(name):
        table, numbers = inputs[0], inputs[-1]
        row = math.prod(table[1:]) * widths[0]
        return math.prod(numbers) * (2 * row + widths[-1])  # rows are read and written
    if COPYING.match(name):
        return 0
    if WRITES_ONLY.match(name):
        return input_bytes[0]
    if COPIES.match(name) or SHRINKS.match(name):
        return sum(input_bytes)
    return sum(input_bytes) + _output_bytes(
        name, inputs, input_bytes, kinds, widths, shapes, concrete
    )


def once(nested: Nest, moved: Ints, is_leaf: Flags) -> Ints:
    """Bytes of each event, counted once although operators call operators.

    Either the caller or its callees count, whichever move more. `is_leaf`: events whose callees
    do not count.
    """
    children, is_counted = np.zeros(len(moved), np.int64), np.zeros(len(moved), np.bool_)
    for rows in reversed(nested.levels()):
        is_counted[rows] = (moved[rows] > 0) & (is_leaf[rows] | (moved[rows] >= children[rows]))
        amounts, parents = np.where(is_counted, moved, children)[rows], nested.parent[rows]
        np.add.at(children, parents[parents >= 0], amounts[parents >= 0])
    in_counted = nested.spread(is_counted)
    has_counted_ancestor = (nested.parent >= 0) & in_counted[nested.parent]
    counted: Ints = np.where(is_counted & ~has_counted_ancestor, moved, 0)
    return counted


def _output_bytes(
    name: str,
    inputs: list[list[int]],
    input_bytes: list[int],
    kinds: list[str],
    widths: list[int],
    shapes: str,
    concrete: str,
) -> int:
    lists = kinds.count("TensorList")
    if FUSED.match(name):
        return sum(input_bytes) * 3 // 4  # weights and two averages are written, gradients are not
    if lists:
        return sum(input_bytes) // lists
    if IN_PLACE.match(name):
        return input_bytes[0]
    operations = flops.of_operator(name, shapes, concrete) if flops.counts(name) else 0
    if operations:
        # Bytes written by an operator that multiplies.
        element_width = max(widths)
        if flops.is_attention(name):
            return math.prod(inputs[0]) * element_width * (3 if "backward" in name else 1)
        if name == "aten::convolution_backward":
            return (math.prod(inputs[1]) + math.prod(inputs[2])) * element_width
        if name == "aten::convolution":
            return operations // (2 * math.prod(inputs[1][1:])) * element_width
        left = inputs[flops.PRODUCTS[name][0]] if name in flops.PRODUCTS else inputs[0]
        return operations // (2 * left[-1]) * element_width
    return max(input_bytes)
