"""How much faster products (attention's too) and what is between them run in another dtype here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.diagnosing.job import operators, savings
from flatout.nouns import amdahl, units
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Profile

CAUTIOUS = {
    ("fp64", "fp32"): 2.0,
    ("fp32", "tf32"): 2.5,
    ("fp32", "fp16"): 3.0,
    ("fp32", "bf16"): 3.0,
    ("tf32", "fp16"): 1.6,
    ("tf32", "bf16"): 1.6,
}
"""Usual speed-ups of large products on GPUs, if no ceiling was measured."""
HALVED = 0.25
"""Share of the time of memory-bound kernels that 16 bits save: at most a half, and nothing where
autocast keeps float32 (losses, exponents, sums with float32). This is the middle."""
CASTS = 4.0
"""Kernels that autocast adds to one product of the forward pass: casts of its weight and bias, and
of their gradients. Other inputs are often in 16 bits already."""
CAUTIOUS_CPU = {("fp64", "fp32"): 1.8, ("fp32", "bf16"): 1.5}
VARIANTS = {("fp32", "bf16"): "bfloat16"}
"""The variant in which products were timed again, by dtypes."""
COVERED = 0.5
"""Share of their time that must have been timed again to represent all."""
CASTS_MS = {"bfloat16": 0.01}
"""Autocast's time per forward call beyond the weight: for bias, input and their gradients."""
TIMED = 0.35
"""Share by which a saving from products timed again may be off."""
REACHED = 0.5
"""Products that reach this share of their ceiling gain the ceilings' whole ratio."""


@dataclass(frozen=True)
class Faster:
    """What products gain in another dtype."""

    saves_ms: float
    """Milliseconds on the device."""
    words: str
    """The arithmetic."""
    uncertainty: float | None = None
    """Share by which the saving may be off, or None for the check family's."""


def faster(profile: Profile, slow: Sequence[Operator], now: str, then: str) -> Faster:
    """What these operators save when they run in dtype `then` instead of `now` (fp32, bf16, ...).

    By the ratio of the measured ceilings, or a cautious constant if there are none. If their
    counted operations reach little of the ceiling, something else limits them too, and the ratio
    shrinks towards 1.
    """
    convolutions = [operator for operator in slow if operators.CONVOLVES.fullmatch(operator.name)]
    fused = [operator for operator in slow if operator.kind is Kind.ATTENTION]
    matrix_products = [o for o in slow if o not in convolutions and o not in fused]
    parts = [
        _faster(profile, group, title, prefixes, now, then)
        for group, title, prefixes in (
            (matrix_products, "matrix products", (_matmul(profile),)),
            (convolutions, "convolutions", _of_convolutions(profile)),
            (fused, "fused attention kernels", ("attention",)),
        )
        if operators.total(profile, group) > 0
    ]
    return Faster(
        sum(part.saves_ms for part in parts),
        "; ".join(part.words for part in parts),
        TIMED if parts and all(part.uncertainty for part in parts) else None,
    )


def between(profile: Profile, then: str) -> Faster:
    """What elementwise kernels in float32 save when the products around them run in 16 bits."""
    updating = operators.of_update(profile)
    kernels = [o for o in operators.of_kind(profile, Kind.ELEMENTWISE) if o not in updating]
    took = operators.total(profile, operators.in_dtype(kernels, operators.FLOAT32))
    saved = HALVED * took
    words = (
        f"elementwise kernels take {units.milliseconds(took)} and halve at most: "
        f"{units.milliseconds(saved)} less in {then} are believed"
    )
    return Faster(saved, words if took else "")


def casts_host_ms(profile: Profile, slow: Sequence[Operator]) -> float:
    """What the host takes longer where autocast casts for these: each launch as its others do."""
    anatomy = profile.anatomy
    launches = sum(part.launches for part in anatomy.parts)
    if not anatomy.host_ms or not launches:
        return 0.0
    forward = sum(o.calls for o in slow if not o.backward and o.kind is not Kind.ATTENTION)
    return CASTS * forward * anatomy.host_ms / launches


def again(profile: Profile, slow: Sequence[Operator], variant: str) -> tuple[float, str] | None:
    """(how many times as fast these ran when repeated in this variant, at least 1; that in words),
    or None if too few were repeated.
    """
    names = {operator.name for operator in slow}
    of_these = [p for p in profile.products if p.name in names and "float" in p.dtypes]
    timed = [product for product in of_these if variant in product.seconds]
    now_ms = sum(product.ms for product in timed)
    if now_ms <= COVERED * sum(product.ms for product in of_these):
        return None
    casts_ms = CASTS_MS.get(variant, 0.0) * sum(p.calls for p in timed if not p.backward)
    then_ms = casts_ms + sum(p.ms * p.seconds[variant] / p.seconds["now"] for p in timed)
    words = f"made again on this machine they ran {units.ratio(now_ms / then_ms)} as fast"
    return max(1.0, now_ms / then_ms), words


def _faster(
    profile: Profile,
    slow: Sequence[Operator],
    title: str,
    prefixes: Sequence[str],
    now: str,
    then: str,
) -> Faster:
    took = operators.total(profile, slow)
    timed = again(profile, slow, VARIANTS.get((now, then), ""))
    ratio, source = timed or _ratio(profile, slow, prefixes, now, then)
    saved = amdahl.saved(took, ratio)
    return Faster(
        saved,
        f"{title} take {units.milliseconds(took)} of the step in {now}; {source}: "
        f"{units.milliseconds(took)} * (1 - 1/{ratio:.2f}) = {units.milliseconds(saved)} "
        f"less in {then}",
        TIMED if timed else None,
    )


def _ratio(
    profile: Profile, slow: Sequence[Operator], prefixes: Sequence[str], now: str, then: str
) -> tuple[float, str]:
    for prefix in prefixes:
        low = profile.ceiling(f"{prefix}-{now}")
        high = profile.ceiling(f"{prefix}-{then}")
        if low and high:
            return _measured(profile, slow, (low, high), now, then)
    table = CAUTIOUS if savings.accelerated(profile) else CAUTIOUS_CPU
    ratio = table.get((now, then), 1.0)
    return ratio, f"no ceilings were measured: a cautious {units.ratio(ratio)} is taken"


def _measured(
    profile: Profile,
    slow: Sequence[Operator],
    ceilings: tuple[float, float],
    now: str,
    then: str,
) -> tuple[float, str]:
    low, high = ceilings
    ratio = max(high / low, 1.0)
    words = f"this machine's ceiling is {_rate(low)} TFLOP/s in {now} and {_rate(high)} in {then}"
    reached = _reached(profile, slow, low)
    if reached is not None and reached < REACHED:
        ratio = 1 + (ratio - 1) * reached / REACHED
        words += f", of which these reach {units.share(reached)}: {units.ratio(ratio)} is believed"
    return ratio, words


def _reached(profile: Profile, slow: Sequence[Operator], ceiling: float) -> float | None:
    """Share of the ceiling (TFLOP/s) that these reach, or None if operations were not counted."""
    counted = [operator for operator in slow if operator.flops]
    took = operators.total(profile, counted)
    flops = sum(operator.flops or 0.0 for operator in counted)
    return flops / (took * 1e-3) / (ceiling * 1e12) if took > 0 else None


def _matmul(profile: Profile) -> str:
    return "matmul" if savings.accelerated(profile) else "matmul-cpu"


def _of_convolutions(profile: Profile) -> tuple[str, str]:
    return operators.convolution_ceilings(profile, "nchw"), _matmul(profile)


def _rate(value: float) -> str:
    return f"{value:.{0 if value >= 99.5 else 1 if value >= 9.95 else 2}f}"
