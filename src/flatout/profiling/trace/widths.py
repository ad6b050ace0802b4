"""Bytes of one element, by the various names of dtypes in traces."""

from __future__ import annotations

WIDTHS = {
    8: ("double", "float64", "long", "long int", "int64", "complex<float>"),
    4: ("float", "float32", "int"),
    2: ("bfloat16", "half", "float16", "short", "short int"),
    1: ("bool", "byte", "char", "unsigned char", "signed char", "float8_e4m3fn", "float8_e5m2"),
}
BY_NAME = {name: width for width, names in WIDTHS.items() for name in names}
USUAL = 4
"""For unknown dtypes, as in lists of tensors, which are mostly float32 parameters."""


def width(dtype: str) -> int | None:
    """Bytes of float, c10::BFloat16, Float, or None for an unknown dtype."""
    return BY_NAME.get(dtype.lower().removeprefix("c10::"))
