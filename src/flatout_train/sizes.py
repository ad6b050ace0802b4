"""Sizes as people read them."""

from __future__ import annotations


def size(count: float | None) -> str:
    """Bytes in binary units, such as 1.5 GiB; "unknown" if `count` is None."""
    if count is None:
        return "unknown"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
