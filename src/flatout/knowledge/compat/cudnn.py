"""cuDNN releases <-> CUDA majors and compute capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flatout.knowledge.compat import tables


@dataclass(frozen=True)
class CudnnRelease:
    """One cuDNN release: 9.1."""

    version: str
    released: str
    cuda_majors: tuple[str, ...]
    """"11", "12"."""
    oldest_capability: tuple[int, int] | None
    newest_capability: tuple[int, int] | None
    source: str


@cache
def releases() -> tuple[CudnnRelease, ...]:
    """All releases from 8.0 on, the oldest first."""
    return tables.releases("cudnn.toml", _release)


def release(version: str) -> CudnnRelease | None:
    """The release of "9.1.0.70" or "9.1", or None if not in the table."""
    return tables.release(releases(), version)


def _release(row: tables.Row) -> CudnnRelease:
    return CudnnRelease(
        version=row.text("version"),
        released=row.month("released"),
        cuda_majors=row.texts("cuda_majors"),
        oldest_capability=row.capability_or_none("oldest_capability"),
        newest_capability=row.capability_or_none("newest_capability"),
        source=row.source(),
    )
