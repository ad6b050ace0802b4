"""Listing: every package installed in one Python, and where it came from."""

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
    """The address it was installed from, or None if it came from an index."""
    editable: bool = False
    folder: bool = False
    """Whether the address is a folder on this machine."""
    vcs: str | None = None
    """git if the address is a repository, else None."""
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
    """One Python with all its packages."""

    python: str
    """3.11.7"""
    system: str
    """Linux, Windows or Darwin."""
    machine: str
    """x86_64, AMD64, arm64, aarch64."""
    packages: tuple[InstalledPackage, ...]
    conda: tuple[CondaPackage, ...] | None = None
    """The conda packages, or None outside a conda environment."""
