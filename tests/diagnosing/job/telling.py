"""What a check says of a job: a row of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from diagnosing.job.made import only, saved_ms
from flatout.nouns.profile import Profile

UNASKED: Any = object()


@dataclass(frozen=True)
class JobTold:
    """One finding of this check, with these words somewhere in it."""

    name: str
    check: str
    job: Profile
    words: tuple[str, ...]
    never: tuple[str, ...]
    saves: Any
    """The milliseconds of a step that it is predicted to save, within 1% if it is a number; None if
    it predicts nothing."""
    ratio: Any
    """The same as a quotient of step times."""
    facts: dict[str, Any]

    def holds(self) -> None:
        """Whether it says so."""
        finding = only(self.check, self.job)
        reason = finding.gain.reason if finding.gain is not None else ""
        cure = (finding.cure.text, *finding.cure.commands)
        said = "\n".join((finding.title, finding.evidence, *cure, reason))
        assert [word for word in self.words if word not in said] == [], said
        assert [word for word in self.never if word in said] == [], said
        assert {name: getattr(finding, name) for name in self.facts} == self.facts
        if self.saves is None:
            assert finding.gain is None
        elif self.saves is not UNASKED:
            near = isinstance(self.saves, int | float)
            expected = pytest.approx(self.saves, rel=0.01) if near else self.saves
            assert saved_ms(finding, self.job) == expected
        if self.ratio is not UNASKED:
            assert finding.gain is not None
            assert finding.gain.ratio == pytest.approx(self.ratio, rel=0.01)


def told(
    name: str,
    check: str,
    job: Profile,
    *words: str,
    never: tuple[str, ...] = (),
    saves: Any = UNASKED,
    ratio: Any = UNASKED,
    **facts: Any,
) -> JobTold:
    """A row. check: its code or its id. facts: where, boost, severity."""
    return JobTold(name, check, job, words, never, saves, ratio, facts)


def each_of(cases: list[JobTold]) -> pytest.MarkDecorator:
    """A test's parameter `case`: each row of a table, by its name."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])
