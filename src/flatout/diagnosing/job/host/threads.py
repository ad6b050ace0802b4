"""Threads of packages that get their work from the training thread, such as log writers."""

from __future__ import annotations

from flatout.diagnosing.job import host_lines
from flatout.diagnosing.job.host import packages
from flatout.diagnosing.job.host_lines import LineGroup
from flatout.nouns import units
from flatout.nouns.host_time import HostKind, HostThread
from flatout.nouns.profile import Profile


def feeding(profile: Profile, thread: HostThread) -> LineGroup | None:
    """Lines of the training thread that call that thread's package, or None if they take little."""
    if thread.where is not None or not thread.package or packages.runs_loop(thread.package):
        return None
    calls = [
        line for line in host_lines.of(profile, HostKind.LIBRARY) if line.package == thread.package
    ]
    groups = host_lines.by_call(profile, calls)
    return groups[0] if groups and host_lines.worth(profile, groups[0]) else None


def fed(profile: Profile, group: LineGroup) -> HostThread | None:
    """The busiest other thread, if these lines give it its work."""
    thread = profile.host.threads[0] if profile.host is not None and profile.host.threads else None
    if thread is None:
        return None
    cause = feeding(profile, thread)
    return thread if cause is not None and cause.where == group.where else None


def waited_ms(profile: Profile, group: LineGroup) -> float:
    """Milliseconds, outside `group`, that training waits while the busiest other thread runs."""
    host = profile.host
    assert host is not None
    own = {str(line.where) for line in group.lines}
    within = sum(line.ms for line in host.of(HostKind.WAITING) if str(line.where) in own)
    factor = host_lines.scale(profile)
    return factor * min(max(0.0, host.waited_ms - within), host.threads[0].cpu_ms)


def words(profile: Profile, thread: HostThread | None) -> str:
    """For the evidence: the thread that gets its work from there, or empty if none."""
    if thread is None or profile.host is None:
        return ""
    factor = host_lines.scale(profile)
    return (
        f'; its thread "{thread.name}" runs {units.milliseconds(factor * thread.cpu_ms)} of CPU '
        f"time a step beside it, and the training thread waits "
        f"{units.milliseconds(factor * profile.host.waited_ms)} without CPU use"
    )
