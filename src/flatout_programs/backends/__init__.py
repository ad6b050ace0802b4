"""Backends, which build a captured model for serving; one per file, whose name is the backend's id.

A file's docstring is the backend's page; `BACKEND` says what it needs and which variants it has,
and `build(captured, folder, variant, settings)` writes the model's files into `folder` and returns
what `loading/<id>.py` needs to know about them. Only the standard library is imported at module
level: the host reads the pages and the needs without torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, NamedTuple


class RuntimePackage(NamedTuple):
    """A package that a backend imports."""

    pip: str
    module: str
    """The module to import, if its name differs."""
    mb: int
    """Approximate installed size, including dependencies."""


class Variant(NamedTuple):
    """One build of a backend."""

    name: str
    """Suffix of the backend's id; empty for none."""
    precision: str
    """exact, rounding, quantised."""
    title: str
    packages: tuple[RuntimePackage, ...] = ()
    """Packages in addition to the backend's."""


class ExportBackend(NamedTuple):
    """A backend's description and needs."""

    variants: tuple[Variant, ...]
    rank: int
    """Of two equally fast backends, the one with the smaller rank is kept."""
    building: tuple[RuntimePackage, ...] = ()
    """Packages to build with ..."""
    serving: tuple[RuntimePackage, ...] = ()
    """... and those that the artefact needs."""
    device: str = ""
    """cuda: it needs one."""
    torch_free: bool = False
    """Whether its artefact is loaded without torch."""


def names() -> list[str]:
    """The ids of all backends, the simplest first."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(
        (name.replace("_", "-") for name in found), key=lambda name: load(name).BACKEND.rank
    )


def load(backend: str) -> Any:
    """The module of a backend."""
    return importlib.import_module("{}.{}".format(__name__, backend.replace("-", "_")))
