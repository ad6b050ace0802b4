"""Alert: a rule over a job's pulse and the machine's samples that holds now, or has held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flatout.nouns.finding import Cure, Severity

AlertState = Literal["pending", "firing", "resolved"]


@dataclass(frozen=True)
class Alert:
    """One episode of one rule about one subject."""

    code: str
    """HANG001: stable, one page of documentation each."""
    id: str
    """The rule's file name with hyphens: job-hangs."""
    severity: Severity
    state: AlertState
    since_s: float
    """Unix time at which the rule first held."""
    title: str
    """The problem in one line of at most 100 characters."""
    evidence: str
    """What was measured, in numbers and names."""
    cure: Cure
    hostname: str = ""
    job: str | None = None
    """Id of the job, or None for an alert about the machine."""
    subject: str = ""
    """The part concerned: `GPU 0`, `rank 3`, `/dev/shm`; empty if all of it."""
    where: str | None = None
    """file:line in the user's code, or None if unknown."""
    boost: str | None = None
    """The boost that cures it without an edit, or None."""
    fired_s: float | None = None
    """Unix time at which it began to fire, or None if it has not."""
    resolved_s: float | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identifies an episode: the same in all its states."""
        return self.code, self.hostname, self.job or "", self.subject
