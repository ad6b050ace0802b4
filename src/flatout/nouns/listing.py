"""Listing: every package that is installed in one Python, with where it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstalledPackage:
    """One package according to its metadata."""

    name: str
    version: str
    """With its build: 2.9.1+cu128."""
    installer: str | None = None
    """pip, uv or conda."""
    url: str | None = None
    """It was installed from this address, not from an index."""
    editable: bool = False
    folder: bool = False
    """The address is a folder on this machine."""
    vcs: str | None = None
    """git, where the address is a repository."""
    commit: str | None = None


@dataclass(frozen=True)
class CondaPackage:
    """One package that conda installed."""

    name: str
    version: str
    build: str
    channel: str


@dataclass(frozen=True)
class Listing:
    """One Python with all that is in it."""

    python: str
    """3.11.7"""
    system: str
    """Linux, Windows or Darwin."""
    machine: str
    """x86_64, AMD64, arm64, aarch64."""
    packages: tuple[InstalledPackage, ...]
    conda: tuple[CondaPackage, ...] | None = None
    """The conda packages, or None outside a conda environment."""
