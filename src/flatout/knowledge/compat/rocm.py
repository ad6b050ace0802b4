"""ROCm releases <-> the GPUs that AMD supports, and what the gfx names mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flatout.knowledge.compat import tables


@dataclass(frozen=True)
class RocmRelease:
    """One ROCm release: 6.3."""

    version: str
    released: str
    supported: tuple[str, ...]
    """LLVM targets that AMD supports officially: gfx90a, gfx942."""
    source: str


@dataclass(frozen=True)
class RocmTarget:
    """One LLVM target: gfx942."""

    name: str
    gpus: tuple[str, ...]
    """Some of the GPUs with this target."""
    source: str


@cache
def releases() -> tuple[RocmRelease, ...]:
    """The releases whose support matrix is known, the oldest first."""
    return tables.releases("rocm.toml", _release)


@cache
def targets() -> tuple[RocmTarget, ...]:
    """The LLVM targets of AMD's GPUs, the oldest first."""
    return tuple(
        RocmTarget(row.text("name"), row.texts("gpus"), row.source())
        for row in tables.read("rocm.toml").rows("target")
    )


def supported_gfx(rocm: str) -> tuple[str, ...] | None:
    """The targets that AMD supports in a ROCm release ("6.3.1"), or None if unknown."""
    entry = tables.release(releases(), rocm)
    return entry.supported if entry else None


def gpus_of(gfx: str) -> tuple[str, ...]:
    """GPUs with this target, as examples for readers; empty if unknown.

    A suffix as rocminfo prints it (gfx90a:sramecc+:xnack-) does not matter.
    """
    name = gfx.split(":")[0].strip().lower()
    return next((target.gpus for target in targets() if target.name == name), ())


def _release(row: tables.Row) -> RocmRelease:
    return RocmRelease(
        row.text("version"), row.month("released"), row.texts("supported"), row.source()
    )
