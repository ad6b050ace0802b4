"""Observer: receives the progress of a tuning while it runs; a terminal view is an example.

Calls come from one thread. An observer never decides anything and its methods return nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from flatout.nouns.trial import Trial


class Observer(Protocol):
    """What the tuning loop reports while it runs."""

    def phase(self, text: str) -> None:
        """A new part of the work begins, in words for people ("searching")."""

    def started(
        self, tried: str | None, params: dict[str, Any], index: int, expected_s: float | None
    ) -> None:
        """Trial `index` (from 1) begins. tried: the boost, or None for the untouched program."""

    def step(self, index: int, phase: str, wall_s: float) -> None:
        """The current trial took step `index`. phase: warmup, window, or the boosts on."""

    def finished(self, trial: Trial) -> None:
        """A trial has its verdict, or a boost was skipped without a trial."""

    def confirming(self, pair: int, ratio: float | None) -> None:
        """A/B pair `pair` (from 1) begins (ratio: None) or gave ratio = untouched / plan."""


class Silent:
    """The observer that does nothing."""

    def phase(self, text: str) -> None: ...

    def started(
        self, tried: str | None, params: dict[str, Any], index: int, expected_s: float | None
    ) -> None: ...

    def step(self, index: int, phase: str, wall_s: float) -> None: ...

    def finished(self, trial: Trial) -> None: ...

    def confirming(self, pair: int, ratio: float | None) -> None: ...
