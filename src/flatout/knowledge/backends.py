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
    """What it is in one line, without the full stop."""
    body: str
    """The documentation after that line, as Markdown."""
    variants: tuple[Variant, ...]
    rank: int
    building: tuple[RuntimePackage, ...]
    serving: tuple[RuntimePackage, ...]
    device: str
    torch_free: bool

    @property
    def page(self) -> str:
        """The whole page, Markdown: its facts, then its documentation."""
        packages = dict.fromkeys(p for variant in self.variants for p in self.packages(variant))
        needs = ", ".join(f"{package.pip} (about {package.mb} MB)" for package in packages)
        facts = [
            f"- Builds: {self.builds}",
            f"- Packages beside torch: {needs or 'none'}",
            f"- The artefact is loaded {'without' if self.torch_free else 'with'} torch",
        ]
        if self.device:
            facts.append("- Needs an NVIDIA GPU")
        head = [f"# flatout export --only {self.id}", f"{self.title}."]
        return "\n\n".join([*head, "\n".join(facts), self.body]) + "\n"

    @property
    def builds(self) -> str:
        """The names of everything it builds, with their precision."""
        names = [(f"{self.id}-{v.name}".removesuffix("-"), v.precision) for v in self.variants]
        return ", ".join(f"`{name}` ({precision})" for name, precision in names)

    def packages(self, variant: Variant) -> tuple[RuntimePackage, ...]:
        """All packages that one build needs besides torch, each once."""
        return tuple(dict.fromkeys((*self.building, *self.serving, *variant.packages)))


@functools.cache
def every() -> tuple[KnownBackend, ...]:
    """All backends, the simplest first."""
    known = []
    for name in programs.names():
        module = programs.load(name)
        title, _, body = (module.__doc__ or "").strip().partition("\n")
        backend = module.BACKEND
        known.append(
            KnownBackend(
                id=name,
                title=title.removesuffix("."),
                body=body.strip(),
                variants=backend.variants,
                rank=backend.rank,
                building=backend.building,
                serving=backend.serving,
                device=backend.device,
                torch_free=backend.torch_free,
            )
        )
    return tuple(known)


def ids() -> tuple[str, ...]:
    """The ids of all backends, the simplest first."""
    return tuple(backend.id for backend in every())


def get(backend_id: str) -> KnownBackend:
    """The backend of that id. Raises KeyError for an unknown one."""
    for backend in every():
        if backend.id == backend_id:
            return backend
    raise KeyError(backend_id)
