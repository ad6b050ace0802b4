"""Bytes that operators must read and write at least, from the shapes and dtypes of their inputs.

Each input is read once and the result written once, as if what lies in a cache had to come from
memory. Outputs are not in a trace: their shapes follow from the inputs'. Transient results inside
of an operator are not counted.
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
"""What they write has another dtype, perhaps: the copy inside of them tells."""
IN_PLACE = re.compile(r"^aten::(?!_fused_)\w+[^_]_(\.\w+)?$")
FUSED = re.compile(r"^aten::_fused_(adam|adamw|sgd|adagrad)_$")
LOOKS_UP = re.compile(r"^aten::(embedding|index_select)$")
SHRINKS = re.compile(
    r"^aten::(sum|mean|max|min|amax|amin|argmax|argmin|any|all|prod|norm|linalg_vector_norm|var|std"
    r"|nll_loss\w*_forward|_foreach_norm|mse_loss|local_scalar_dense|_local_scalar_dense|topk"
    r"|max_pool2d\w*|avg_pool2d|_?adaptive_avg_pool2d)$"
)
"""What they write is small beside what they read."""


@lru_cache(maxsize=100_000)
def of_operator(name: str, shapes: str, dtypes: str, concrete: str) -> int:
    """Of one call; 0: its shapes do not tell. `shapes`, `dtypes`: as in a Recording."""
    try:
        inputs = flops.inputs(shapes)
    except ValueError:
        return 0
    kinds = dtypes.split(", ") if dtypes else []
    known = [width(kind) for kind in kinds]
    if len(known) == len(inputs):
        widths = [found or 0 for found in known]
    else:  # lists of tensors are spread out in the shapes alone
        widths = [max((found for found in known if found), default=USUAL)] * len(inputs)
    read = [math.prod(shape) * each for shape, each in zip(inputs, widths, strict=True) if shape]
    if not read:
        return 0
    if LOOKS_UP.match(name):
        return _looked_up(inputs, widths)
    if COPYING.match(name):
        return 0
    if WRITES_ONLY.match(name):
        return read[0]
    if COPIES.match(name) or SHRINKS.match(name):
        return sum(read)
    return sum(read) + _written(name, inputs, read, kinds, widths, shapes, concrete)


def once(nested: Nest, moved: Ints, whole: Flags) -> Ints:
    """Bytes of each event, where operators call operators.

    The caller counts, or what it calls: whichever moves more. `whole`: nothing inside of these
    counts.
    """
    children, chosen = np.zeros(len(moved), np.int64), np.zeros(len(moved), np.bool_)
    for rows in reversed(nested.levels()):
        chosen[rows] = (moved[rows] > 0) & (whole[rows] | (moved[rows] >= children[rows]))
        amounts, parents = np.where(chosen, moved, children)[rows], nested.parent[rows]
        np.add.at(children, parents[parents >= 0], amounts[parents >= 0])
    around = nested.spread(chosen)
    inside = (nested.parent >= 0) & around[nested.parent]
    found: Ints = np.where(chosen & ~inside, moved, 0)
    return found


def _written(
    name: str,
    inputs: list[list[int]],
    read: list[int],
    kinds: list[str],
    widths: list[int],
    shapes: str,
    concrete: str,
) -> int:
    lists = kinds.count("TensorList")
    if FUSED.match(name):
        return sum(read) * 3 // 4  # of weights, gradients and two averages the gradients stay
    if lists:
        return sum(read) // lists
    if IN_PLACE.match(name):
        return read[0]
    operations = flops.of_operator(name, shapes, concrete) if flops.counts(name) else 0
    if operations:
        return _product(name, operations, inputs, widths)
    return max(read)


def _product(name: str, operations: int, inputs: list[list[int]], widths: list[int]) -> int:
    """What an operator that multiplies writes."""
    each = max(widths)
    if flops.is_attention(name):
        return math.prod(inputs[0]) * each * (3 if "backward" in name else 1)
    if name == "aten::convolution_backward":
        return (math.prod(inputs[1]) + math.prod(inputs[2])) * each
    if name == "aten::convolution":
        return operations // (2 * math.prod(inputs[1][1:])) * each
    left = inputs[flops.PRODUCTS[name][0]] if name in flops.PRODUCTS else inputs[0]
    return operations // (2 * left[-1]) * each


def _looked_up(inputs: list[list[int]], widths: list[int]) -> int:
    """Rows of a table, by their numbers: read and written."""
    table, numbers = inputs[0], inputs[-1]
    row = math.prod(table[1:]) * widths[0]
    return math.prod(numbers) * (2 * row + widths[-1])
