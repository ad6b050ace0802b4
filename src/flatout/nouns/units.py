"""Units: numbers as people read them; a number looks the same wherever it is printed.

A value that is None or not finite reads "unknown", never 0 and never a guess. The text is ASCII, so
that a terminal of any encoding can show it.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

UNKNOWN = "unknown"
NUMBER = r"\d+(?:\.\d+)?"
TIME = re.compile(rf"(?:({NUMBER})\s*h)?\s*(?:({NUMBER})\s*m(?:in)?)?\s*(?:({NUMBER})\s*s)?")
SIZES = {"": 1, "b": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
SIZES |= {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


class Quantity(NamedTuple):
    """A number as printed, and its unit, which may be empty."""

    number: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.unit}" if self.unit else self.number


UNKNOWN_QUANTITY = Quantity(UNKNOWN)


def milliseconds(value: float | None) -> str:
    """1514.2 -> "1514 ms", 41.23 -> "41.2 ms", 0.8312 -> "0.83 ms"."""
    return str(in_milliseconds(value))


def in_milliseconds(value: float | None) -> Quantity:
    """`milliseconds`, with the unit separate."""
    if value is None or not math.isfinite(value):
        return UNKNOWN_QUANTITY
    return Quantity(_three_digits(value), "ms")


def rate(value: float | None, unit: str = "samples/s") -> str:
    """78.04 -> "78 samples/s", 2.113 -> "2.1 samples/s", 12345.6 -> "12,346 samples/s"."""
    return str(at_rate(value, unit))


def at_rate(value: float | None, unit: str = "samples/s") -> Quantity:
    """`rate`, with the unit separate."""
    if value is None or not math.isfinite(value):
        return UNKNOWN_QUANTITY
    digits = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.995 else 3
    return Quantity(f"{value:,.{digits}f}", unit)


def ratio(value: float | None) -> str:
    """1.524 -> "1.52x", 12.34 -> "12.3x", 0.9 -> "0.90x"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{_factor(value)}x"


def ratios(interval: tuple[float, float]) -> str:
    """An interval of ratios: (3.516, 3.79) -> "3.52-3.79"."""
    low, high = (_factor(value) if math.isfinite(value) else UNKNOWN for value in interval)
    return f"{low}-{high}"


def share(value: float | None) -> str:
    """A part of 1 in percent: 0.0091 -> "0.9%", 0.123 -> "12%", 0.00004 -> "<0.1%"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    percent = value * 100
    if 0 < abs(percent) < 0.05:
        return "<0.1%"
    return f"{percent:.{0 if abs(percent) >= 9.95 or percent == 0 else 1}f}%"


def size(value: float | None) -> str:
    """Bytes in binary units: 1536 -> "1.5 KiB", 3435973837 -> "3.2 GiB"."""
    return str(in_bytes(value))


def in_bytes(value: float | None) -> Quantity:
    """`size`, with the unit separate."""
    if value is None or not math.isfinite(value):
        return UNKNOWN_QUANTITY
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1000:
            return Quantity(f"{amount:.0f}" if unit == "B" else _two_digits(amount), unit)
        amount /= 1024
    return Quantity(_two_digits(amount), "TiB")


def duration(seconds: float | None) -> str:
    """3.21 -> "3.2 s", 75 -> "1 min 15 s", 3720 -> "1 h 02 min"."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if abs(seconds) < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size_bytes(text: str | None) -> float | None:
    """A size as software prints it, 11.90 GiB or 8 GB (also binary), or None if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", (text or "").lower())
    if match is None or match[2] not in SIZES:
        return None
    return float(match[1]) * SIZES[match[2]]


def seconds(text: str) -> float | None:
    """A time as people or `duration` write it: 90, 90s, 1.5h, 1m44s, 1 min 27 s; else None."""
    text = text.strip().lower()
    if re.fullmatch(NUMBER, text):
        return float(text)
    match = TIME.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    hours, minutes, rest = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + rest


def portion(text: str) -> float | None:
    """A part of a whole as people write it, 10% or 0.1, as 0.1, or None if it is neither.

    Without the sign it is a ratio and must be below 1, since 10 might not mean 10 %.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text.strip())
    if match is None:
        return None
    number = float(match[1])
    if match[2]:
        return number / 100
    return number if number < 1 else None


def count(value: int | None, noun: str) -> str:
    """1 -> "1 step", 1200 -> "1,200 steps"."""
    if value is None:
        return f"{UNKNOWN} {noun}s"
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def _factor(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.{0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2}f}"


def _two_digits(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 9.95 else 1}f}"
