"""Frame: everything a monitor knows at one moment. Screens, page and outlets draw frames."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.alert import Alert
from flatout.nouns.job_sample import JobSample
from flatout.nouns.machine_sample import MachineSample


@dataclass(frozen=True)
class Frame:
    """One moment, with several machines if nodes are merged. Jobs and alerts name their machine."""

    time_s: float
    """Unix time."""
    machines: tuple[MachineSample, ...] = ()
    jobs: tuple[JobSample, ...] = ()
    """Running jobs, then those that ended while they were watched."""
    alerts: tuple[Alert, ...] = ()
    """Firing alerts, the worst first, then pending ones, then those resolved in the last hour."""
    notes: tuple[str, ...] = ()
    """What could not be read, in sentences for the user, such as a node that does not answer."""
