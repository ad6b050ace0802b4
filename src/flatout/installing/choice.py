"""Choice: one build of one PyTorch release, and why it is the right one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """One build of one release."""

    version: str
    """2.9.1"""
    build: str
    """cu128"""
    why: tuple[str, ...]
    """Sentences: each fact that decided, in numbers."""
    driver_needed: str | None = None
    """Driver to install first, at least this version; None: the present one will do."""
