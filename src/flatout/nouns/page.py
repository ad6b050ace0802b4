"""Page: what a check says about itself, for people who look up its code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One code's page."""

    code: str
    id: str
    severity: str
    since: str
    title: str
    """The problem in one sentence, without the full stop."""
    body: str
    """What it sees, why it matters, evidence, cure, references: Markdown."""

    @property
    def markdown(self) -> str:
        """The whole page."""
        facts = f"- Severity: {self.severity}\n- Name: `{self.id}`\n- Since {self.since}"
        return f"# {self.code}: {self.title}\n\n{facts}\n\n{self.body}\n"
