"""A normalisation is written by hand, from means, powers and square roots.

## What it sees

In one function of the user's, within a few lines: a mean over dimensions (or a variance), a square
root (or its reciprocal), both with a backward pass, and a tensor that is multiplied or divided by
one number for each of its rows or channels; in a model that is not compiled. Updates of weights and
data preparation have no backward pass, and torch's own normalisation is left out if a CPU makes it
of the same operators.

## Why it matters

Each of these operators reads and writes the whole tensor. Torch's own normalisation reads it once
or twice, and its backward pass is also one kernel.

## Cure

`torch.nn.functional.layer_norm`, `rms_norm` (torch 2.4), `group_norm` or `batch_norm`; or
`torch.compile`, which fuses hand-written code.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.operators import Shape
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Place, Profile

CHECK = Check(code="KERN009", severity=Severity.WARNING, since="0.2.0")
MEAN_BACKWARD = re.compile(r"Mean(?!Backward0)Backward\d+|(Var|Std|VarMean|StdMean)Backward\d+")
"""Autograd's names without MeanBackward0, the mean of all elements, as in a loss."""
ROOT_BACKWARD = re.compile(r"(Sqrt|Rsqrt|Std|StdMean)Backward\d+")
MEAN = re.compile(r"aten::(mean|var|std|var_mean|std_mean)")
ROOT = re.compile(r"aten::(rsqrt|sqrt)")
DEVIATION = re.compile(r"aten::(std|std_mean)")
SCALING = re.compile(r"aten::(mul|div)_?")
SUBTRACTING = re.compile(r"aten::(sub|rsub)_?")
PARTS = re.compile(
    r"aten::(mean|var|std|var_mean|std_mean|rsqrt|sqrt|mul|div|sub|add|pow|neg|reciprocal|sum"
    r"|expand)(_|\.\w+)?"
)
OF_TORCH = re.compile(r"aten::\w*(layer|rms|group|batch|instance|weight)_norm\w*")
NEAR = 4
"""Lines around a scaling that count as part of its normalisation."""
SAVED, SAVED_CPU = 0.6, 0.4
"""Cautious shares of the time of these operators that one kernel saves."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each function."""
    if profile.job is not None and any(model.compiled for model in profile.job.models):
        return
    for group in operators.by_function(profile.operators).values():
        parts = _parts(group)
        if parts:
            yield from _diagnosis(profile, parts)


def _parts(group: list[Operator]) -> list[Operator]:
    """The operators of one function that normalise and are trained, or empty if none."""
    of_torch = _lines(operator for operator in group if OF_TORCH.fullmatch(operator.name))
    own = [operator for operator in group if _line(operator) not in of_torch]
    means, roots = (
        _lines(operator for operator in own if name.fullmatch(operator.name))
        for name in (MEAN_BACKWARD, ROOT_BACKWARD)
    )
    forward = [operator for operator in own if not operator.backward]
    whole = _inputs(forward, MEAN, means)
    spreads = {_squeezed(shape) for shape in _inputs(forward, ROOT, roots)}
    deviates = bool(_inputs(forward, DEVIATION, roots))
    sizes, lines = set[Shape](), set[int]()
    for operator in forward:
        if SCALING.fullmatch(operator.name) and _near(operator, means) and _near(operator, roots):
            for large, small in _factors(operator):
                known = deviates or _squeezed(small) in spreads
                if known and large in whole and _is_of_parts(small, large):
                    sizes |= {large, small}
                    lines.add(_line(operator))
    return [
        operator
        for operator in own
        if PARTS.fullmatch(operator.name)
        and _near(operator, lines)
        and sizes & {*operators.inputs(operator)}
    ]


def _inputs(group: list[Operator], pattern: re.Pattern[str], lines: set[int]) -> set[Shape]:
    """Shapes of the first inputs of these operators on these lines."""
    return {
        shape
        for operator in group
        if pattern.fullmatch(operator.name) and _line(operator) in lines
        for shape in operators.first_inputs(operator)
    }


def _factors(operator: Operator) -> Iterator[tuple[Shape, Shape]]:
    """Its two inputs, in both orders."""
    for text in operator.shapes:
        inputs = operators.shape(text)
        if len(inputs) >= 2:
            yield inputs[0], inputs[1]
            yield inputs[1], inputs[0]


def _is_of_parts(small: Shape, large: Shape) -> bool:
    """Whether `small` has one number for each of several parts of `large`."""
    if not 1 < operators.elements(small) < operators.elements(large) or len(small) > len(large):
        return False
    aligned = zip(reversed(large), reversed(small), strict=False)
    return all(size in (1, of) for of, size in aligned)


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size > 1)


def _line(operator: Operator) -> int:
    return operator.where.line if operator.where is not None else 0


def _lines(group: Iterable[Operator]) -> set[int]:
    return {_line(operator) for operator in group}


def _near(operator: Operator, lines: set[int]) -> bool:
    return any(abs(_line(operator) - line) <= NEAR for line in lines)


def _diagnosis(profile: Profile, parts: list[Operator]) -> Iterator[Diagnosis]:
    took = operators.total(profile, parts)
    saved = SAVED if savings.accelerated(profile) else SAVED_CPU
    saving = device_time.of_device(
        profile,
        took * saved,
        f"these operators take {units.milliseconds(took)}; one kernel is taken to save "
        f"{units.share(saved)} of it (a cautious constant)",
    )
    if not saving.worth:
        return
    place = operators.costliest_place(profile, parts)
    yield Diagnosis(
        title=f"normalisation by hand: {units.milliseconds(took)} of the step",
        evidence=operators.evidence(profile, parts),
        cure=_cure(place, parts),
        severity=saving.severity,
        where=str(place) if place is not None else None,
        boost=savings.boost(profile, "compile"),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _cure(place: Place | None, parts: list[Operator]) -> Cure:
    old = place.source if place is not None else ""
    if not any(SUBTRACTING.fullmatch(part.name) and not part.backward for part in parts):
        text = "Use torch's own: rms_norm over the last dimensions."
        return Cure(text, savings.lines(place, old, "y = F.rms_norm(x, x.shape[-1:], weight, eps)"))
    return Cure(
        "Use torch's own: layer_norm over the last dimensions, batch_norm or group_norm over "
        "others.",
        savings.lines(place, old, "y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)"),
    )
