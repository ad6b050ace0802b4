"""The step computes in float64, which is rarely intended and always slow.

## What it sees

Operators whose floating-point inputs are all float64 and take a share of the step, whether the
whole model is in float64 or only tensors made from NumPy arrays.

## Why it matters

GPUs for graphics and AI compute float64 at 1/32 to 1/64 of their float32 rate, data-centre ones at
a half; few tensor cores support it. On a CPU float64 costs twice the time and bandwidth. NumPy's
default is float64, and one float64 tensor promotes all that it is added to.

## Cure

Convert where the data enters: `torch.as_tensor(array, dtype=torch.float32)`, `model.float()`, and
no `torch.set_default_dtype(torch.float64)`.

## References

- https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
- https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.diagnosing.job.kern import products
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import FlowSeen

CHECK = Check(code="KERN001", severity=Severity.WARNING, since="0.2.0")
CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::copy_")
SOURCES = 3
"""The most places of float64's origin that are named."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all that is computed in float64."""
    slow = [
        operator
        for operator in operators.in_dtype(profile.operators, operators.FLOAT64)
        if _many(operator)
    ]
    if not slow:
        return
    multiplied = [operator for operator in operators.products(profile) if operator in slow]
    other_ms = operators.total(
        profile, [operator for operator in slow if operator not in multiplied]
    )
    gain = products.faster(profile, multiplied, "fp64", "fp32")
    words = [gain.words] if gain.words else []
    if other_ms > 0:
        words.append(f"half of {units.milliseconds(other_ms)} elsewhere, for half the bytes")
    saving = device_time.of_device(profile, gain.saves_ms + other_ms / 2, "; ".join(words))
    if not saving.worth:
        return
    models = profile.job.models if profile.job is not None else ()
    whole = any(model.dtype == "float64" for model in models)
    title = "the model computes in float64" if whole else "float64 enters the step"
    entered, where = _source(profile)
    yield Diagnosis(
        title=f"{title}: {units.milliseconds(operators.total(profile, slow))} of it",
        evidence=entered + operators.evidence(profile, slow),
        cure=Cure(
            "Compute in float32: convert the data where it enters"
            + (", and the model." if whole else ".")
            + " Keep float64 only where the numbers need it.",
            _lines(profile, whole),
        ),
        severity=saving.severity,
        where=where or operators.where(profile, slow),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _source(profile: Profile) -> tuple[str, str | None]:
    """Where float64 comes from, in words for the evidence, and the costliest such line."""
    seen = flow.of(profile)
    if seen is None or not seen.doubles:
        return "", None
    sources = [flow.source(profile, row) for row in seen.doubles[:SOURCES]]
    texts = [text + (f" at {where}" if where else "") for text, where in sources]
    entered = "; ".join(dict.fromkeys(texts))
    return f"{entered}; then ", next((where for _, where in sources if where), None)


def _many(operator: Operator) -> bool:
    """Whether it is not about single numbers; conversions of Python's own have no shape."""
    if not operator.shapes:
        return operator.name not in CONVERSIONS
    return any(operators.elements(tensor) > 1 for tensor in operators.inputs(operator))


def _lines(profile: Profile, whole: bool) -> tuple[str, ...]:
    seen = flow.of(profile)
    if seen is not None and seen.doubles:
        return _lines_at_sources(profile, seen)
    model = savings.lines(None, "model = model.double()", "model = model.float()") if whole else ()
    data = "x = torch.from_numpy(array)"
    return (*model, *savings.lines(None, data, "x = torch.as_tensor(array, dtype=torch.float32)"))


def _lines_at_sources(profile: Profile, seen: FlowSeen) -> tuple[str, ...]:
    """What to change on the lines where float64 comes in."""
    lines: list[str] = []
    for row in seen.doubles[:SOURCES]:
        _, where = flow.source(profile, row)
        if seen.default_double and row.what not in ("aten._to_copy", "tensor", "batch"):
            before, after = "torch.set_default_dtype(torch.float64)", ""
        elif row.what in ("parameter", "buffer"):
            before, after = "model = model.double()", "model = model.float()"
        elif row.what == "aten._to_copy":
            before, after = "x = x.double()", "x = x.float()"
        elif row.what == "batch":
            before, after = "return array", "return array.astype(numpy.float32)"
        else:
            before = "x = torch.from_numpy(array)"
            after = "x = torch.as_tensor(array, dtype=torch.float32)"
        lines += savings.lines(where, before, *([after] if after else []))
    return tuple(dict.fromkeys(lines))
