"""The interface to the agent's boosts: what each is, and how it judges a job. No torch."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout_agent import boosts as agent
from flatout_agent.boost import Moment, Risk
from flatout_agent.wire import JobFacts, Params

MOMENTS = {
    Moment.START: "when torch has been imported",
    Moment.LOADER: "when a DataLoader is iterated for the first time",
    Moment.MODEL: "when a model is called in training for the first time",
    Moment.FROZEN: "when a model that is not trained is called in a second step",
    Moment.OPTIMIZER: "when an optimizer takes its first step",
}
RISKS = {
    Risk.EXACT: "exact: the same arithmetic, at most reordered",
    Risk.ROUNDING: "rounding: numbers are computed in another precision",
}


@dataclass(frozen=True)
class KnownBoost:
    """One boost as the host sees it."""

    id: str
    title: str
    """What it does in one line, without the full stop."""
    body: str
    """The documentation after that line, as Markdown."""
    since: str
    risk: Risk
    moment: Moment
    params: Mapping[str, tuple[Any, ...]]
    """Parameter -> values worth trying, the default first."""
    conflicts: frozenset[str]
    """Boosts that cannot be combined with this one, declared by either of the two."""
    covered_by: tuple[str, ...]
    """Boosts beside which this one gains nothing."""
    redraws: bool
    compiles: bool

    @property
    def page(self) -> str:
        """The whole page, Markdown: its facts, then its documentation."""
        facts = [
            f"- Risk: {RISKS[self.risk]}",
            f"- Applied {MOMENTS[self.moment]}",
            f"- Since {self.since}",
        ]
        if self.params:
            choices = {
                name: ", ".join(f"`{value!r}`" for value in values)
                for name, values in self.params.items()
            }
            shown = "; ".join(f"`{name}`: {values}" for name, values in choices.items())
            facts.append(f"- Parameters (the default first): {shown}")
        if self.covered_by:
            facts.append(f"- Gains nothing beside {', '.join(sorted(self.covered_by))}")
        if self.conflicts:
            facts.append(f"- Never together with {', '.join(sorted(self.conflicts))}")
        return "\n\n".join([f"# {self.id}", f"{self.title}.", "\n".join(facts), self.body]) + "\n"

    @property
    def loads(self) -> bool:
        """Whether it changes how batches are loaded."""
        return self.moment is Moment.LOADER

    @property
    def defaults(self) -> Params:
        """The first value of each parameter."""
        return {name: values[0] for name, values in self.params.items()}

    def applies(self, facts: JobFacts, params: Params | None = None) -> str | None:
        """Why it does not apply to this job, or None if it does."""
        return agent.load(self.id).applies(facts, self._all(params))

    def applies_somehow(self, facts: JobFacts) -> bool:
        """Whether it applies to this job with at least one choice of its parameters."""
        choices = itertools.product(*self.params.values())
        names = tuple(self.params)
        return any(
            self.applies(facts, dict(zip(names, values, strict=True))) is None for values in choices
        )

    def promise(self, facts: JobFacts, params: Params | None = None) -> float:
        """Likely speed-up (1.3: 30 % faster), for the order of trials."""
        return agent.load(self.id).promise(facts, self._all(params))

    def by_hand(self, facts: JobFacts, params: Params | None = None) -> str:
        """Plain PyTorch lines that do the same."""
        return agent.load(self.id).by_hand(facts, self._all(params))

    def environment(self, facts: JobFacts, params: Params | None = None) -> dict[str, str]:
        """Variables that must be set before the process starts."""
        ask = getattr(agent.load(self.id), "environment", None)
        return dict(ask(facts, self._all(params))) if ask is not None else {}

    def _all(self, params: Params | None) -> Params:
        return {**self.defaults, **(params or {})}


@functools.cache
def every() -> tuple[KnownBoost, ...]:
    """All boosts, sorted by id."""
    modules = {boost_id: agent.load(boost_id) for boost_id in agent.names()}
    known = []
    for boost_id, module in modules.items():
        title, _, body = (module.__doc__ or "").strip().partition("\n")
        boost = module.BOOST
        others = {other for other in modules if boost_id in modules[other].BOOST.conflicts}
        known.append(
            KnownBoost(
                id=boost_id,
                title=title.removesuffix("."),
                body=body.strip(),
                since=boost.since,
                risk=boost.risk,
                moment=boost.moment,
                params=dict(boost.params),
                conflicts=frozenset({*boost.conflicts, *others}),
                covered_by=boost.covered_by,
                redraws=boost.redraws,
                compiles=boost.compiles,
            )
        )
    return tuple(known)


def get(boost_id: str) -> KnownBoost:
    """The boost of that id. Raises KeyError for an unknown one."""
    for boost in every():
        if boost.id == boost_id:
            return boost
    raise KeyError(boost_id)


def ids() -> tuple[str, ...]:
    """The ids of all boosts, sorted."""
    return tuple(agent.names())


def nearest(boost_id: str) -> tuple[str, ...]:
    """The known ids most like an unknown one, best first."""
    wanted = boost_id.strip().lower().replace("_", "-").replace(" ", "-")
    overlapping = [id_ for id_ in ids() if wanted and (wanted in id_ or id_ in wanted)]
    close = difflib.get_close_matches(wanted, ids(), n=3, cutoff=0.5)
    return tuple(dict.fromkeys([*close, *overlapping]))[:3]
