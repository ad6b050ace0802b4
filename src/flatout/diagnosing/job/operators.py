"""What checks of jobs ask of a Profile's operators: time, lines and dtypes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from flatout.diagnosing.job import savings
from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile

PRODUCTS = (Kind.TENSOR_CORES, Kind.MATMUL)
FLOAT32 = ("float", "float32")
FLOAT64 = ("double", "float64")
HALVES = ("c10::BFloat16", "c10::Half", "bfloat16", "float16")
COMPUTING = (
    Kind.TENSOR_CORES,
    Kind.MATMUL,
    Kind.ATTENTION,
    Kind.NORMALISATION,
    Kind.ELEMENTWISE,
    Kind.REDUCTION,
)
"""Kinds of operators in a forward pass."""
MULTIPLIES = re.compile(
    r"aten::(mm|bmm|addmm|addbmm|baddbmm|linear|mkldnn_linear|_addmm_activation)"
)
CONVOLVES = re.compile(
    r"aten::(cudnn_convolution\w*|mkldnn_convolution\w*|miopen_convolution\w*"
    r"|convolution_backward|_slow_conv\w*|slow_conv\w*|thnn_conv2d\w*|_conv_depthwise2d\w*)"
)
DECOMPOSES = re.compile(r"aten::_?(linalg_(?!matmul|multi_dot|vecdot|tensordot)|fft_)")
"""Singular values, inverses, determinants, Fourier transforms: they need the wide dtype."""


def ms(profile: Profile, operator: Operator) -> float:
    """Its milliseconds on the device that trains."""
    return max(operator.device_ms if savings.accelerated(profile) else operator.host_ms, 0.0)


def total(profile: Profile, operators: Iterable[Operator]) -> float:
    """Their milliseconds together, at most the step's."""
    return min(sum(ms(profile, operator) for operator in operators), profile.anatomy.step_ms)


def called(profile: Profile, pattern: str | re.Pattern[str]) -> list[Operator]:
    """The operators whose whole name matches."""
    return [operator for operator in profile.operators if re.fullmatch(pattern, operator.name)]


def matches(pattern: str | re.Pattern[str], name: str) -> bool:
    """Whether the whole name matches."""
    return re.fullmatch(pattern, name) is not None


def of_kind(profile: Profile, *kinds: Kind) -> list[Operator]:
    """The operators of these kinds."""
    return [operator for operator in profile.operators if operator.kind in kinds]


def products(profile: Profile) -> list[Operator]:
    """Torch's own matrix products and convolutions, whose precision the script decides."""
    return [
        operator
        for operator in profile.operators
        if MULTIPLIES.fullmatch(operator.name)
        or CONVOLVES.fullmatch(operator.name)
        or (
            operator.kind in PRODUCTS
            and operator.name.startswith("aten::")
            and not DECOMPOSES.match(operator.name)
        )
    ]


def convolution_ceilings(profile: Profile, layout: str) -> str:
    """The prefix of their ceilings' ids on the device that trains. layout: nchw or nhwc."""
    return f"conv-{layout}" if savings.accelerated(profile) else f"conv-cpu-{layout}"


def in_dtype(operators: Iterable[Operator], dtypes: Sequence[str]) -> list[Operator]:
    """Operators whose floating-point inputs all have these dtypes; none if dtypes are unknown."""
    return [
        operator
        for operator in operators
        if (floats := [dtype for dtype in operator.dtypes if _is_float(dtype)])
        and all(dtype in dtypes for dtype in floats)
    ]


def where(profile: Profile, operators: Iterable[Operator]) -> str | None:
    """The user's line that costs most among them, or None if unknown."""
    place = costliest_place(profile, operators)
    return str(place) if place is not None else None


def costliest_place(profile: Profile, operators: Iterable[Operator]) -> Place | None:
    """Like `where`, with the function and the text of the line."""
    cost: dict[str, float] = defaultdict(float)
    places: dict[str, Place] = {}
    for operator in operators:
        if operator.where is not None:
            cost[str(operator.where)] += ms(profile, operator)
            places.setdefault(str(operator.where), operator.where)
    best = max(cost, key=lambda key: cost[key], default=None)
    return places[best] if best is not None else None


def by_function(operators: Iterable[Operator]) -> dict[tuple[str, str], list[Operator]]:
    """Operators grouped by the user's file and function, without those of unknown place."""
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for operator in operators:
        if operator.where is not None:
            groups[(operator.where.file, operator.where.function)].append(operator)
    return dict(groups)


def evidence(profile: Profile, operators: Iterable[Operator], most: int = 3) -> str:
    """The costliest ones: "aten::mm 12.1 ms at model.py:30 (64x512, 512x2048)"."""
    ranked = sorted(operators, key=lambda operator: ms(profile, operator), reverse=True)
    parts = [_facts(profile, operator) for operator in ranked[:most]]
    if len(ranked) > most:
        parts.append(f"and {len(ranked) - most} more")
    return "; ".join(parts)


def _facts(profile: Profile, operator: Operator) -> str:
    line = f" at {operator.where}" if operator.where is not None else ""
    shape = f" ({operator.shapes[0]})" if operator.shapes else ""
    return f"{operator.name} {units.milliseconds(ms(profile, operator))}{line}{shape}"


Shape = tuple[int, ...]


def shape(text: str) -> tuple[Shape, ...]:
    """((32, 64), (64, 128)) for "32x64, 64x128"; anything that is no shape becomes ()."""
    matches = (re.fullmatch(r"\d+(x\d+)*", part.strip()) for part in text.split(","))
    return tuple(tuple(map(int, match[0].split("x"))) if match else () for match in matches)


def first_inputs(operator: Operator) -> list[Shape]:
    """Shapes of its first input in all its calls; () if it is no tensor."""
    return [shape(text)[0] for text in operator.shapes]


def inputs(operator: Operator) -> list[Shape]:
    """Shapes of its tensor inputs in all its calls; numbers are left out."""
    return [tensor for text in operator.shapes for tensor in shape(text) if tensor]


def elements(dimensions: Sequence[int]) -> int:
    """How many numbers a tensor of this shape holds; 0 for an unknown shape."""
    return math.prod(dimensions) if dimensions else 0


def accumulating(profile: Profile) -> list[Operator]:
    """In-place additions in a backward pass, which may add to existing gradients."""
    return [
        operator
        for operator in called(profile, r"aten::add_")
        if operator.backward
        or (operator.where is not None and "backward(" in operator.where.source)
    ]


def has_convolutions(profile: Profile) -> bool | None:
    """Whether the model has 2-d convolutions, by its layers or operators, or None if unknown."""
    if profile.job is not None and profile.job.models:
        return any(model.conv2d for model in profile.job.models)
    ran = any(CONVOLVES.fullmatch(operator.name) for operator in profile.operators)
    return True if ran else None


def _is_float(dtype: str) -> bool:
    return dtype in FLOAT32 or dtype in FLOAT64 or dtype in HALVES


def on_nvidia(profile: Profile) -> bool:
    """Whether the device is known to be an NVIDIA GPU."""
    if profile.anatomy.device != "cuda" or (profile.job is not None and profile.job.hip):
        return False
    name = profile.device_name or (profile.job.device_name if profile.job is not None else None)
    return name is not None and re.search(r"(?i)\bAMD\b|Radeon|Instinct|\bMI\d", name) is None


def capability(profile: Profile) -> tuple[int, int] | None:
    """CUDA compute capability of the device, or None if no NVIDIA GPU or unknown."""
    if not on_nvidia(profile):
        return None
    return profile.capability or (profile.job.capability if profile.job is not None else None)


def of_update(profile: Profile) -> list[Operator]:
    """Operators of the lines on which a program without an optimizer updates its weights."""
    update = profile.seen.update if profile.seen is not None else None
    lines = update.lines if update is not None else ()
    return [operator for operator in profile.operators if str(operator.where) in lines]
