"""Machine: facts about the hardware and software here; a fact that could not be read is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One accelerator as its own driver tells it."""

    name: str
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Machine:
    """Where a plan was measured or a program runs."""

    system: str
    """Linux, Windows or Darwin."""
    cpu: str | None
    cores: int | None
    """Cores that this process may really use: affinity and cgroup quota."""
    memory_bytes: int | None
    gpus: tuple[Gpu, ...] = ()
    python: str | None = None
    torch: str | None = None
    """Version in the user's interpreter, as the agent saw it."""
