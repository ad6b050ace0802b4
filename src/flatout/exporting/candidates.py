"""The builds that are possible on this machine, with these packages and options."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.knowledge import backends
from flatout.knowledge.backends import KnownBackend
from flatout.nouns.errors import UserError
from flatout.nouns.exported import BuildPrecision, BuildState, ExportCandidate, ExportSettings
from flatout_programs.backends import Variant

EAGER = "eager"
QUANTISED = "int8"
"""The word for `--allow` that admits quantised builds."""
ALL_WORDS = frozenset({QUANTISED})


@dataclass(frozen=True)
class BuildPlan:
    """A build that may be tried."""

    backend: KnownBackend
    variant: Variant

    @property
    def id(self) -> str:
        return f"{self.backend.id}-{self.variant.name}" if self.variant.name else self.backend.id

    @property
    def precision(self) -> BuildPrecision:
        return BuildPrecision(self.variant.precision)

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the simpler build first."""
        return self.backend.rank, self.backend.variants.index(self.variant)

    def row(self, state: BuildState, reason: str = "", install: str = "") -> ExportCandidate:
        """Its row of the table before any measurement."""
        return ExportCandidate(
            self.id, self.backend.id, self.variant.title, self.precision, state, reason, install
        )


def plans(settings: ExportSettings) -> list[BuildPlan]:
    """All builds that the options ask for, the simplest first; eager is always among them.

    Raises UserError for an unknown backend.
    """
    ids = {BuildPlan(backend, item).id for backend in backends.every() for item in backend.variants}
    for name in (*settings.only, *settings.skip):
        if name not in ids | set(backends.ids()):
            raise UserError(
                f"there is no backend {name!r}", f"backends: {', '.join(backends.ids())}"
            )
    for word in settings.allow:
        if word not in ALL_WORDS:
            raise UserError(f"--allow {word!r} is not known", f"--allow {QUANTISED}")
    found = []
    for backend in backends.every():
        for variant in backend.variants:
            plan = BuildPlan(backend, variant)
            names = {plan.id, backend.id}
            is_wanted = not settings.only or names & set(settings.only)
            if plan.id == EAGER or (is_wanted and not names & set(settings.skip)):
                found.append(plan)
    return sorted(found, key=lambda plan: plan.order)


def why_not(plan: BuildPlan, settings: ExportSettings, facts: dict[str, object]) -> str:
    """Why a build is not tried on this machine, or empty if it is."""
    if plan.backend.device == "cuda" and not facts["cuda"]:
        return "it needs an NVIDIA GPU"
    if settings.exact and plan.precision is not BuildPrecision.EXACT:
        return "--exact keeps float32 arithmetic"
    if plan.precision is BuildPrecision.QUANTISED and QUANTISED not in settings.allow:
        return "quantisation changes results: allow it with --allow int8"
    return ""
