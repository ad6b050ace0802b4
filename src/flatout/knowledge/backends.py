"""The interface to the backends of `flatout export`: what each is and needs. No torch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flatout_programs import backends as programs
from flatout_programs.backends import RuntimePackage, Variant


@dataclass(frozen=True)
class KnownBackend:
    """One backend as the host sees it."""

    id: str
    title: str
    """The first line of its page, without the full stop."""
    page: str
    """Its documentation, Markdown."""
    variants: tuple[Variant, ...]
    rank: int
    building: tuple[RuntimePackage, ...]
    serving: tuple[RuntimePackage, ...]
    device: str
    on_demand: bool
    torch_free: bool
    loading: str
    """The file of `flatout_programs.loading` that runs its artefacts."""

    def packages(self, variant: Variant) -> tuple[RuntimePackage, ...]:
        """All that one build needs beside torch, each once."""
        return tuple(dict.fromkeys((*self.building, *self.serving, *variant.packages)))


@functools.cache
def every() -> tuple[KnownBackend, ...]:
    """All backends, the simplest first."""
    return tuple(_known(name) for name in programs.names())


def ids() -> tuple[str, ...]:
    """The ids of all backends, the simplest first."""
    return tuple(backend.id for backend in every())


def get(backend_id: str) -> KnownBackend:
    """The backend of that id. Raises KeyError for an unknown one."""
    for backend in every():
        if backend.id == backend_id:
            return backend
    raise KeyError(backend_id)


def _known(name: str) -> KnownBackend:
    module = programs.load(name)
    page = (module.__doc__ or "").strip()
    backend = module.BACKEND
    return KnownBackend(
        id=name,
        title=page.partition("\n")[0].removesuffix("."),
        page=page,
        variants=backend.variants,
        rank=backend.rank,
        building=backend.building,
        serving=backend.serving,
        device=backend.device,
        on_demand=backend.on_demand,
        torch_free=backend.torch_free,
        loading=backend.loading or name,
    )
