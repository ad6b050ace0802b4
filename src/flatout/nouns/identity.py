"""Identity: what a plan stores about a Machine, enough to recognise it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuIdentity:
    """One accelerator as its own driver names it."""

    name: str
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Identity:
    """Where a plan was measured or a program runs. A fact that could not be read is None."""

    system: str
    """Linux, Windows or Darwin."""
    cpu: str | None
    cores: int | None
    """Cores that this process may use, by affinity and cgroup quota."""
    memory_bytes: int | None
    gpus: tuple[GpuIdentity, ...] = ()
    python: str | None = None
    torch: str | None = None
    """Version in the user's interpreter, as the agent saw it."""
