"""TensorFlow releases <-> Python, CUDA, cuDNN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flatout.knowledge.compat import tables


@dataclass(frozen=True)
class TensorflowRelease:
    """One release: 2.17."""

    version: str
    released: str
    pythons: tuple[str, ...]
    cuda: str | None
    cudnn: str | None
    extra: str | None
    """`and-cuda` if `pip install tensorflow[and-cuda]` installs CUDA (from 2.14 on), else None."""
    oldest_capability: tuple[int, int]
    """Oldest compute capability with kernels in its Linux wheels."""
    gpu_on_windows: bool
    """Whether it uses GPUs on native Windows (up to 2.10)."""
    source: str


@cache
def releases() -> tuple[TensorflowRelease, ...]:
    """All releases from 2.8 on, the oldest first."""
    return tables.releases("tensorflow.toml", _release)


def release(version: str) -> TensorflowRelease | None:
    """The release of "2.17.1", or None if not in the table."""
    return tables.release(releases(), version)


def _release(row: tables.Row) -> TensorflowRelease:
    return TensorflowRelease(
        version=row.text("version"),
        released=row.month("released"),
        pythons=row.texts("pythons"),
        cuda=row.text_or_none("cuda"),
        cudnn=row.text_or_none("cudnn"),
        extra=row.text_or_none("extra"),
        oldest_capability=row.capability("oldest_capability"),
        gpu_on_windows=row.yes("gpu_on_windows"),
        source=row.source(),
    )
