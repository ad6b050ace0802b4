"""Dimensions of large matrix products are not multiples of what tensor cores need.

## What it sees

Matrix products in 16 bits (or TF32) on tensor cores in which a large dimension is not a multiple of
8 (TF32: 4): a vocabulary of 50257, a hidden size of 1001.

## Why it matters

Tensor cores load rows in 16-byte pieces. Rows of an odd length start at addresses that are not
aligned: cuBLAS then takes slower kernels, or none on the tensor cores at all.

## Cure

Round the dimension up where the layer is created; the added rows are never used. For a vocabulary:
`vocab_size = 64 * math.ceil(vocab_size / 64)`.

## References

- https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile

CHECK = Check(code="KERN005", severity=Severity.WARNING, since="0.2.0")
LEAST = 64
"""Smaller dimensions (the classes of a small task) cost little."""
ODD, EVEN = 0.4, 0.1
"""Cautious shares of a product's time that alignment saves, for odd and for even dimensions."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each misaligned dimension."""
    capability = operators.capability(profile)
    if capability is None or capability < (7, 0):
        return
    by_dimension: dict[tuple[int, int], list[Operator]] = {}
    for operator in operators.products(profile):
        multiple = _multiple(profile, operator)
        off = _off(operator, multiple) if multiple else None
        if off is not None and multiple is not None:
            by_dimension.setdefault((off, multiple), []).append(operator)
    for (size, multiple), slow in by_dimension.items():
        yield from _diagnosis(profile, size, multiple, slow)


def _diagnosis(
    profile: Profile, size: int, multiple: int, slow: list[Operator]
) -> Iterator[Diagnosis]:
    took = operators.total(profile, slow)
    rounded = -(-size // multiple) * multiple
    wins = ODD if size % 2 else EVEN
    padding = rounded / size - 1
    saving = device_time.of_device(
        profile,
        took * (wins - padding),
        f"products with this dimension take {units.milliseconds(took)}; aligned ones are taken to "
        f"save {units.share(wins)} (a cautious constant), the {rounded - size} added rows cost "
        f"{units.share(padding)}",
    )
    if not saving.worth:
        return
    yield Diagnosis(
        title=f"a dimension of {size} is not a multiple of {multiple}",
        evidence=f"{operators.evidence(profile, slow)}; {size} = {multiple} * {size // multiple} + "
        f"{size % multiple}, the next multiple is {rounded}",
        cure=Cure(
            f"Make the layer {rounded} wide and leave the last {rounded - size} unused; old "
            "checkpoints then need padding too.",
            savings.lines(None, f"size = {size}", f"size = {rounded}"),
        ),
        severity=saving.severity,
        where=operators.where(profile, slow),
        saves_ms=saving.ms,
        reason=saving.reason,
    )


def _multiple(profile: Profile, operator: Operator) -> int | None:
    if not operators.MULTIPLIES.fullmatch(operator.name):
        return None
    if operators.in_dtype([operator], operators.HALVES):
        return 8
    tf32 = profile.job is not None and profile.job.matmul_precision in ("high", "medium")
    capability = operators.capability(profile)
    if tf32 and capability and capability >= (8, 0):
        return 4 if operators.in_dtype([operator], operators.FLOAT32) else None
    return None


def _off(operator: Operator, multiple: int) -> int | None:
    """The largest misaligned row dimension in its costliest shape, or None."""
    if not operator.shapes:
        return None
    matrices = [matrix for matrix in operators.shape(operator.shapes[0]) if len(matrix) >= 2]
    rows = {matrix[-1] for matrix in matrices} | {matrix[-2] for matrix in matrices[1:]}
    return max((size for size in rows if size >= LEAST and size % multiple), default=None)
