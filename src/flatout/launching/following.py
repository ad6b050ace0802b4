"""Follow a job that runs elsewhere: its states, its lines, and what failed first."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from flatout.explaining import explaining
from flatout.launching import engines
from flatout.nouns.errors import UserError
from flatout.nouns.launched import FirstFailure, JobState, LogLine, SubmittedJob
from flatout.nouns.signature import Role

WAIT_S = 0.3
"""Seconds between two looks for new lines."""
ASK_S = (1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0)
"""Seconds between questions to the engine; the last value repeats. Sites ask to keep them rare."""
SILENT_S = 900.0
"""Seconds after which an engine that does not answer is given up."""
LATE_S = 1.5
"""Seconds after the job's end for lines that a shared file system shows late."""
SLOW_S = 30.0
"""The same for logs that say when they are complete, over a network that may be slow."""
LONGEST_S = 300.0
MOST_LINES = 500_000
"""Lines of a job's log that are searched for its failure."""
FIRST = re.compile(
    r"flatout: error: (rank \d+ of \d+ (?:\(node (?P<node>\S+)\) )?(?:ended first|hangs): .+"
    r"|node \S+ is gone: .+)"
)
"""Messages of `flatout run` on a node."""
ITS_LOG = re.compile(r"flatout: next: (?:on node \S+: )?flatout explain (.+)")
C10_WARNING = re.compile(r"(?:\[rank\d+\]:)?\[W\d{3,4} ")
TAIL_LINES = 20
ERROR = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b"
    r"|flatout: (?!warning: )|slurmstepd(?:-\S+)?: error: |srun: error: )"
)
"""Lines of programs, `flatout run` and Slurm that say what went wrong."""

Event = JobState | LogLine


def events(job: SubmittedJob, wait: Callable[[float], None] = time.sleep) -> Iterator[Event]:
    """Each change of state and every line; ends with the job. Raises UserError.

    Closing it does not affect the job.
    """
    engine = engines.load(job.engine)
    lines = engine.logs(job)
    questions = _Questions(lambda: engine.state(job), job.id)
    while True:
        changed = questions.ask()
        if changed is not None and not changed.final:
            yield changed
        for line in lines:
            if line is None:  # no more are available now
                break
            yield line
        if changed is not None and changed.final:
            yield from _rest(lines, engine.ENGINE.logs_end, wait)
            yield changed
            return
        wait(WAIT_S)


def first_failure(job: SubmittedJob, first: str = "") -> FirstFailure | None:
    """Whose error came first in a failed job and what it means, or None if no line says so.

    first: the source that ended first by the engine's account; empty if unknown.
    """
    by_source: dict[str, list[str]] = {}
    # All lines of a job that has ended.
    engine = engines.load(job.engine)
    lines = engine.logs(job)
    for line in islice(_rest(lines, engine.ENGINE.logs_end, time.sleep), MOST_LINES):
        by_source.setdefault(line.source, []).append(line.text)
    said = _said_by_run(job, by_source)
    if said is not None:
        return said
    own = {first: by_source[first]} if first in by_source else {}
    ways = (_explained, own), (_error, own), (_explained, by_source), (_error, by_source)
    for look, texts in ways:
        found = look(texts)
        if found is not None:
            return found
    return None


def _said_by_run(job: SubmittedJob, by_source: dict[str, list[str]]) -> FirstFailure | None:
    """The failure that `flatout run` on a node reported, with the rank's own log."""
    for source, texts in by_source.items():
        for place, text in enumerate(texts):
            said = FIRST.search(text)
            if said is None:
                continue
            logs = (found[1] for line in texts[place:] if (found := ITS_LOG.search(line)))
            return _with_its_log(job, FirstFailure(source, said[1]), said["node"], next(logs, ""))
    return None


def _with_its_log(
    job: SubmittedJob, failure: FirstFailure, node: str | None, path: str
) -> FirstFailure:
    """The failure with the end of the rank's log and its explanation."""
    read = getattr(engines.load(job.engine), "read", None)
    text = read(job, node or "", path) if read is not None and path else ""
    if not text.strip():
        return failure
    answer = explaining.explain_text(_without_warnings(text.splitlines()))
    known = answer if answer.recognised and answer.matches else None
    tail = tuple(text.rstrip().splitlines()[-TAIL_LINES:])
    return replace(failure, explained=known, tail=tail)


def _explained(by_source: dict[str, list[str]]) -> FirstFailure | None:
    answer = explaining.explain(
        [(source, [_without_warnings(texts).encode()]) for source, texts in by_source.items()]
    )
    if not answer.recognised or not answer.matches:
        return None
    root = answer.matches[0]
    if root.signature.role in (Role.ECHO, Role.HARMLESS):  # only says that something failed
        return None
    evidence = root.evidence
    error = next((line.strip() for line in evidence.text.splitlines() if line.strip()), "")
    return FirstFailure(evidence.source or "", error, answer)


def _without_warnings(lines: Iterable[str]) -> str:
    """The text without torch's many harmless warnings, such as names that do not resolve back."""
    return "\n".join(line for line in lines if not C10_WARNING.match(line))


def _error(by_source: dict[str, list[str]]) -> FirstFailure | None:
    for source, texts in by_source.items():
        for text in texts:
            if ERROR.match(text):
                return FirstFailure(source, text.strip())
    return None


class _Questions:
    """Asks the engine about the job now and then."""

    def __init__(self, state: Callable[[], JobState], job_id: str) -> None:
        self._state, self._id = state, job_id
        self._known: JobState | None = None
        self._asked = 0
        self._next = self._answered = time.monotonic()

    def ask(self) -> JobState | None:
        """The state, if it is due and has changed; else None."""
        now = time.monotonic()
        if now < self._next:
            return None
        state = self._state()
        self._next = time.monotonic() + ASK_S[min(self._asked, len(ASK_S) - 1)]
        self._asked += 1
        if state.state != "unknown":
            self._answered = now
        elif now - self._answered > SILENT_S:
            raise UserError(
                f"the engine has not answered for {SILENT_S / 60:.0f} minutes: {state.detail}",
                f"ask again later: flatout launch --follow {self._id}",
                1,
            )
        if state == self._known:
            return None
        self._known = state
        self._asked = min(self._asked, 2)  # further changes often follow soon
        return state


def _rest(
    lines: Iterator[LogLine | None], logs_end: bool, wait: Callable[[float], None]
) -> Iterator[LogLine]:
    """The remaining lines of a job that has ended."""
    quiet_s = SLOW_S if logs_end else LATE_S
    deadline = time.monotonic() + quiet_s
    last = time.monotonic() + LONGEST_S
    while time.monotonic() < min(deadline, last):
        for line in lines:
            if line is None:
                break
            deadline = time.monotonic() + quiet_s
            yield line
        else:
            return
        wait(WAIT_S)
