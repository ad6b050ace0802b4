"""The thread that trains waits, and neither computes nor waits for a batch or the device.

## What it sees

In sampled stacks: a line in which the training thread uses no CPU for 4 % of the step or more,
outside of torch and of the loader: sleep, files that are written through, another process, a
database, the network, a lock. On an accelerator it counts while the device waits for the host.
Lines seen in only one or two sampled steps are a note.

## Why it matters

Nothing trains meanwhile, on no core.

## Cure

Remove the pause; hand files, messages and requests to a thread of their own, through a queue; send
several values in one request; keep files and connections open; do it every N steps. The gain: nine
tenths of the time.

## References

- https://docs.python.org/3/library/concurrent.futures.html
- https://docs.python.org/3/library/queue.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, savings
from flatout.diagnosing.job.host import packages
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.host_time import HostKind, HostLine
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST012", severity=Severity.WARNING, since="0.2.0", hides=("HOST007",))
ASIDE = packages.ASIDE
Wait = tuple[str, str, tuple[str, ...]]
"""What the thread does, in words; the cure; its lines."""
PROCESS: Wait = (
    "waits for another process",
    "Start the process once and talk to it, or every 50 steps.",
    (packages.EVERY_50,),
)
DATABASE: Wait = (
    "waits for a database",
    "Read it before training, or commit every 50 steps; keep the connection open.",
    (packages.EVERY_50, "    connection.commit()"),
)
FILES: Wait = (
    "waits for files",
    "Write less often, every 50 steps, or in a thread of its own, and without flush and fsync.",
    (packages.EVERY_50, ASIDE),
)
NETWORK: Wait = (
    "waits for an answer over the network",
    "Send it from a thread of its own in the background, through a queue; or less often (every 50 "
    "steps), several values in one request, over a connection that stays open.",
    (packages.EVERY_50, "    # send what was collected", ASIDE),
)
REMOTE = ("wandb", "mlflow", "neptune", "comet_ml", "clearml", "aim", "swanlab", "huggingface_hub")
"""Packages that report to a server."""
BY_PACKAGE = {packages.NETWORK: NETWORK, packages.DATABASE: DATABASE, packages.FILES: FILES}
BY_WORDS: tuple[tuple[tuple[str, ...], Wait], ...] = (
    (("subprocess", "Popen", "check_output", "os.system", ".communicate("), PROCESS),
    (("sleep", ".wait("), ("sleeps", "Remove the pause.", ())),
    (("requests.", "urllib", "urlopen", "socket", "http", ".recv", ".sendall", "grpc"), NETWORK),
    (("sqlite", "execute", "commit", "connect", "cursor", "lmdb", "h5py"), DATABASE),
    (
        ("fsync", "flush", "write", "open(", "read", "save", "dump", "os.replace", "unlink"),
        FILES,
    ),
    (
        ("acquire", "lock", "with ", "join", ".get(", ".put(", "queue"),
        (
            "waits for another thread",
            "Hold the lock for as short as possible; pass values through a queue without waiting.",
            ("queue.put_nowait(value)",),
        ),
    ),
)
OTHER: Wait = (
    "waits",
    "Do it less often, every 50 steps, or in a thread of its own.",
    (packages.EVERY_50, ASIDE),
)


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line."""
    if profile.host is None or not profile.host.idle_known:
        return
    for group in host_lines.by_line(profile, host_lines.of(profile, HostKind.WAITING)):
        saves = host_lines.saved_ms(profile, group.ms)
        if not host_lines.worth(profile, group) or not savings.worth(profile, saves):
            continue
        reason, cure, commands = _wait(group.lines[0])
        share = units.share(group.ms / profile.anatomy.step_ms)
        saves, severity = host_lines.promised(profile, group, saves)
        often = host_lines.often(profile, group)
        lost = f"{units.milliseconds(group.ms)}, {share} of the step{often}"
        yield Diagnosis(
            title=f"the training thread {reason}: {lost}",
            evidence=host_lines.evidence(profile, group),
            cure=Cure(cure, savings.lines(group.where, group.where.source, *commands)),
            severity=severity,
            where=str(group.where),
            saves_ms=saves,
            reason=f"nine tenths of {units.milliseconds(group.ms)} without CPU use"
            + host_lines.doubt(profile, group),
        )


def _wait(line: HostLine) -> Wait:
    """The wait, by the package that the line calls, else by its text."""
    package = line.package
    known = NETWORK if package in REMOTE else BY_PACKAGE.get(packages.use(package, line.callee))
    if known is not None:
        reason, cure, commands = known
        return (f"{reason} ({package})" if known is NETWORK else reason), cure, commands
    text = f"{line.callee} {package} {line.where.source}"
    return next((wait for words, wait in BY_WORDS if any(word in text for word in words)), OTHER)
