"""What builds a captured model for serving: one backend a file, the file's name is its id.

A file's docstring is the backend's page; `BACKEND` says what it needs and which variants it has,
and `build(captured, folder, variant, settings)` writes the model's files into `folder` and returns
what `loading/<id>.py` must know of them. Standard library alone at the top: the host reads the
pages and the needs without torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, NamedTuple


class RuntimePackage(NamedTuple):
    """A package that a backend imports."""

    pip: str
    module: str
    """What is imported, where it is not called the same."""
    mb: int
    """Installed size, about, with what it brings along."""


class Variant(NamedTuple):
    """One build of a backend."""

    name: str
    """What the backend's id gets added; empty: nothing."""
    precision: str
    """exact, rounding, quantised."""
    title: str
    packages: tuple[RuntimePackage, ...] = ()
    """Beside those of the backend."""
    searches: bool = False
    """It takes the time that `--tune` gives it; without, it is skipped."""
    device: str = ""
    """cuda: this variant needs one."""


class ExportBackend(NamedTuple):
    """What a backend is and needs."""

    variants: tuple[Variant, ...]
    rank: int
    """Of two that are equally fast the one with the smaller rank is kept."""
    building: tuple[RuntimePackage, ...] = ()
    """Packages to build with ..."""
    serving: tuple[RuntimePackage, ...] = ()
    """... and those that the artefact needs."""
    device: str = ""
    """cuda: it needs one."""
    on_demand: bool = False
    """Tried only where it is named."""
    torch_free: bool = False
    """Its artefact is loaded without torch."""
    loading: str = ""
    """The backend whose file in `loading` runs the artefact; empty: its own."""


def names() -> list[str]:
    """The ids of all backends, the simplest first."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(
        (name.replace("_", "-") for name in found), key=lambda name: load(name).BACKEND.rank
    )


def load(backend: str) -> Any:
    """The module of a backend."""
    return importlib.import_module("{}.{}".format(__name__, backend.replace("-", "_")))


def variant(backend: str, name: str) -> Variant | None:
    """The variant of that name."""
    return next((item for item in load(backend).BACKEND.variants if item.name == name), None)
