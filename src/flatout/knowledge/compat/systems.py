"""The oldest operating system that the wheels of a PyTorch release run on."""

from __future__ import annotations

from packaging.version import Version

from flatout.knowledge.compat import pytorch, tables


def oldest_glibc(torch: str, build: str | None = None) -> str | None:
    """Oldest glibc for the Linux x86_64 wheels of a torch release; None: not known.

    build: for one build ("cu126"), where the builds of one release differ.
    """
    entry = pytorch.release(torch)
    wheel = pytorch.build(torch, build) if build else None
    if wheel and wheel.glibc:
        return wheel.glibc
    return entry.glibc if entry else None


def oldest_macos(torch: str) -> str | None:
    """Oldest macOS for the arm64 wheels of a torch release; None: not known."""
    entry = pytorch.release(torch)
    return entry.macos if entry else None


def newest_torch_for(system: str, version: str) -> str | None:
    """The newest torch release whose wheels still run there; None: none, or not known.

    system: glibc or macos; version: that of the machine ("2.17", "12.6").
    """
    have = tables.number(version)
    if have is None:
        return None
    for entry in reversed(pytorch.releases()):
        oldest = {"glibc": entry.glibc, "macos": entry.macos}.get(system)
        if oldest and have >= Version(oldest):
            return entry.version
    return None


def pythons_of(torch: str) -> tuple[str, ...]:
    """Pythons that have wheels of a torch release; empty: not known."""
    entry = pytorch.release(torch)
    return entry.pythons if entry else ()
