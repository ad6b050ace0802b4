"""Ceiling: what this hardware was measured to do at most, and what its data sheet says."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.finding import Finding
from flatout.nouns.identity import Identity

SHORTER_IS_BETTER = ("us", "ms", "s")
"""Units of time; in all other units more is better."""


@dataclass(frozen=True)
class Point:
    """One size that was measured."""

    size: str
    """"4096x4096x4096", "256 MiB", "32x64x56x56 3x3"."""
    value: float


@dataclass(frozen=True)
class Ceiling:
    """One measured ceiling."""

    id: str
    """matmul-bf16, copy-host-to-device-pinned: stable, the same on every machine."""
    title: str
    device: str
    """cpu, cuda:0."""
    value: float | None
    """Value at the best size, or None if not measured; `note` says why."""
    unit: str
    """TFLOP/s, GB/s, us, launches/s, images/s, x."""
    datasheet: float | None = None
    """The figure on the maker's data sheet, in the same unit, or None if unknown."""
    best: str = ""
    """The size at which `value` was reached."""
    curve: tuple[Point, ...] = ()
    """Small sizes first."""
    note: str = ""


@dataclass(frozen=True)
class Device:
    """One device as torch names it. A field is None if unknown."""

    device: str
    """cuda:0."""
    name: str | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    """As the driver writes it, to find the GPU in the Machine."""


@dataclass(frozen=True)
class Benched:
    """The whole of one `flatout bench`."""

    machine: Identity
    torch: str
    ceilings: tuple[Ceiling, ...]
    findings: tuple[Finding, ...]
    """Devices that perform far below what they should, and why; the worst first."""
    expected: str | None = None
    """The device that was named with --expect."""
    passed: bool | None = None
    """Whether it is the expected device and performs as expected, or None without --expect."""
    quick: bool = False
    date: str = ""
    """When it was measured (ISO 8601)."""
    wall_s: float | None = None
    devices: tuple[Device, ...] = ()
    """Accelerators, as torch sees them."""
    interrupted: bool = False
    """Whether Ctrl-C ended it early; later measurements are then missing."""
    busy: float | None = None
    """Share of all cores that other programs used just before, or None if unknown."""
