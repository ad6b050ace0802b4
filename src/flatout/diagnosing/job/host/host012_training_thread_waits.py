"""The thread that trains waits, and neither computes nor waits for a batch or the device.

## What it sees

In sampled stacks: a line in which the training thread uses no CPU for 4 % of the step or more,
outside of torch and of the loader: sleep, files that are written through, another process, a
database, the network, a lock. On an accelerator it counts where the device waits for the host.

## Why it matters

Nothing trains meanwhile, on no core.

## Evidence

The line, what it calls, the milliseconds a step in which the thread was ready for nothing, and in
how many stacks it was seen.

## Cure

Remove the pause; hand files, messages and requests to a thread of their own; keep files and
connections open; do it every N steps. The gain: nine tenths of the time.

## References

- https://docs.python.org/3/library/concurrent.futures.html
- https://docs.python.org/3/library/queue.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST012", severity=Severity.WARNING, since="0.3.0", hides=("HOST007",))
ASIDE = "# with ThreadPoolExecutor(1) before the loop, pool.submit(work, values) in it"
CURES = (
    (
        ("subprocess", "Popen", "check_output", "os.system", ".communicate("),
        "waits for another process",
        "Start the process once and talk to it, or every 50 steps.",
        ("if step % 50 == 0:",),
    ),
    (("sleep", ".wait("), "sleeps", "Remove the pause.", ()),
    (
        ("sqlite", "execute", "commit", "connect", "cursor", "lmdb", "h5py"),
        "waits for a database",
        "Read it before training, or commit every 50 steps; keep the connection open.",
        ("if step % 50 == 0:", "    connection.commit()"),
    ),
    (
        ("fsync", "flush", "write", "open(", "read", "save", "dump", "os.replace", "unlink"),
        "waits for files",
        "Write less often, every 50 steps, or in a thread of its own, and without flush and fsync.",
        ("if step % 50 == 0:", ASIDE),
    ),
    (
        ("requests", "urllib", "socket", "http", "urlopen", "recv", "send"),
        "waits for the network",
        "Do it in a thread of its own, or every 50 steps.",
        (ASIDE,),
    ),
    (
        ("acquire", "lock", "with ", "join", ".get(", ".put(", "queue"),
        "waits for another thread",
        "Hold the lock for as short as possible; pass values through a queue without waiting.",
        ("queue.put_nowait(value)",),
    ),
)
OTHER = (
    "waits",
    "Do it less often, every 50 steps, or in a thread of its own.",
    ("if step % 50 == 0:", ASIDE),
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    if profile.host is None or not profile.host.idle_known:
        return
    for group in host_lines.by_line(profile, host_lines.of(profile, HostKind.WAITING)):
        saves = host_lines.saved_ms(profile, group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        reason, cure, commands = _cure(group.lines[0])
        share = units.share(group.ms / profile.anatomy.step_ms)
        lost = f"{units.milliseconds(group.ms)}, {share} of the step"
        yield Diagnosis(
            title=f"the training thread {reason}: {lost}",
            evidence=host_lines.evidence(profile, group),
            cure=Cure(cure, savings.lines(group.where, group.where.source, *commands)),
            severity=savings.severity(profile, saves),
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} without CPU use",
        )


def _cure(line: HostLine) -> tuple[str, str, tuple[str, ...]]:
    text = f"{line.callee} {line.package} {line.where.source}"
    for words, reason, cure, commands in CURES:
        if any(word in text for word in words):
            return reason, cure, commands
    return OTHER
