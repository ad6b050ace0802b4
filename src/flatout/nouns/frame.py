"""Frame: all that a monitor knows at one moment. Screens, the page and outlets draw frames."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.alert import Alert
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import MachineSample


@dataclass(frozen=True)
class Frame:
    """One moment. Several machines where nodes are merged; a job and an alert name theirs."""

    time_s: float
    """Unix time."""
    machines: tuple[MachineSample, ...] = ()
    jobs: tuple[JobSample, ...] = ()
    """Those that run, then those that ended while they were watched."""
    alerts: tuple[Alert, ...] = ()
    """Those that fire, the worst first; then pending ones; then those resolved in the last hour."""
    notes: tuple[str, ...] = ()
    """What could not be read, in sentences for the user: a node that does not answer."""
