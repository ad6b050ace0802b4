"""Attention is written by hand: a softmax between two matrix products.

## What it sees

A softmax over scores that one batched matrix product makes and another takes, by their shapes (or,
if these were not recorded, in one function), instead of fused attention.

## Why it matters

Written so, the scores (length x length for each head) go through memory some ten times, and are
kept for the backward pass: time and memory grow with the square of the length. Fused kernels
never write them.

## Cure

`torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)` in
place of these lines.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
- https://arxiv.org/abs/2205.14135
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.diagnosing.job.kern import attention
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN008", severity=Severity.WARNING, since="0.2.0")
PRODUCT = r"aten::(bmm|baddbmm)"
SOFTMAX = r"aten::(_softmax|_softmax_backward_data|_safe_softmax)"
BETWEEN = r"aten::(div|mul|add|masked_fill|where|native_dropout|dropout|bernoulli)(_|\.\w+)?"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all attention of the model."""
    parts = _parts(profile)
    if not parts:
        return
    took = operators.total(profile, parts)
    saved = attention.saved(profile)
    saving = device_time.of_device(
        profile,
        took * saved,
        f"scores, softmax and what is between take {units.milliseconds(took)}; a fused kernel is "
        f"taken to save {units.share(saved)} of it (a cautious constant)",
    )
    if not saving.worth:
        return
    forward = [operator for operator in parts if not operator.backward]
    softmax = [operator for operator in forward if operators.matches(SOFTMAX, operator.name)]
    line = operators.costliest_place(profile, softmax)
    place = str(line) if line is not None else operators.where(profile, forward or parts)
    yield Diagnosis(
        title=f"attention by hand: {units.milliseconds(took)} of the step",
        evidence=operators.evidence(profile, parts),
        cure=Cure(
            "One call of torch.nn.functional takes the place of both products and the softmax.",
            savings.lines(
                place,
                (line.source if line is not None else "") or "y = softmax(q @ k.mT / scale) @ v",
                "y = F.scaled_dot_product_attention(q, k, v)  # attn_mask, dropout_p as before",
            ),
        ),
        severity=saving.severity,
        where=place,
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _parts(profile: Profile) -> list[Operator]:
    """Products, softmax and the operators between, or empty if no attention by hand."""
    softmax = operators.called(profile, SOFTMAX)
    multiplied = operators.called(profile, PRODUCT)
    if not softmax or not multiplied or _fallback(profile):
        return []
    scores = _scores(softmax)
    if scores:
        parts = [operator for operator in multiplied if _makes(operator, scores)]
        parts += [operator for operator in softmax if _scores([operator]) & scores]
        parts += [
            operator
            for operator in operators.called(profile, BETWEEN)
            if _scores([operator]) & scores
        ]
    else:
        parts = _in_one_function(softmax, multiplied)
    products = sum(operator.calls for operator in parts if operator in multiplied)
    return parts if products >= 2 and any(operator in softmax for operator in parts) else []


def _fallback(profile: Profile) -> bool:
    """Whether torch's own attention called these operators (KERN020)."""
    return bool(operators.called(profile, attention.MATH))


def _scores(operators_with_scores: list[Operator]) -> set[tuple[int, int, int]]:
    """(batch * heads, rows, columns) of their first inputs with three dimensions or more."""
    shapes: set[tuple[int, int, int]] = set()
    for operator in operators_with_scores:
        for first in operators.first_inputs(operator):
            if len(first) >= 3:
                shapes.add((operators.elements(first[:-2]), first[-2], first[-1]))
    return shapes


def _makes(product: Operator, scores: set[tuple[int, int, int]]) -> bool:
    """Whether its output or one of its factors has the shape of the scores."""
    for text in product.shapes:
        factors = [factor for factor in operators.shape(text) if len(factor) == 3][-2:]
        if len(factors) == 2:
            left, right = factors
            output = (left[0], left[1], right[2])
            if {output, _three(left), _three(right)} & scores:
                return True
    return False


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return (shape[0], shape[1], shape[2])


def _in_one_function(softmax: list[Operator], multiplied: list[Operator]) -> list[Operator]:
    groups = operators.by_function([*softmax, *multiplied])
    return [
        operator
        for group in groups.values()
        if set(group) & set(softmax)
        and sum(part.calls for part in group if part in multiplied and not part.backward) >= 2
        for operator in group
    ]
