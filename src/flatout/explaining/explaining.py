"""Make an Explained of texts: scan them, put the root cause first, fill in its cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from flatout.explaining import (
    collectives,
    conditions,
    ending,
    filling,
    lines,
    memory_figures,
    scene,
)
from flatout.explaining.patterns import compiled
from flatout.explaining.ranking import RankedCause, confidence, ranked
from flatout.explaining.scanning import Book, Hit, Scanner
from flatout.knowledge import signatures
from flatout.knowledge.compat import pytorch
from flatout.nouns.explained import Explained, FilledStep, Match
from flatout.nouns.machine import Machine
from flatout.nouns.signature import BetterLog, Confidence, Role, Wording
from flatout_agent import wire

SMALL = 4 << 20
"""Most bytes of a text that is tried again with its lines joined in other ways."""
TAIL = 256 << 10
"""Bytes at the end of a longer text that are searched for signs of a failure."""
SURE = 7
MEMORY = "memory"
"""The family of out-of-memory errors."""
GENERAL_OUT_OF_MEMORY = ("cuda-oom", "hip-oom", "xpu-oom", "mps-out-of-memory", "cpu-allocator")
LEAK = "cuda-oom-grows"
TIMED_OUT = "nccl-timeout"
"""Prefix of the ids of collectives that timed out."""
FAILED = (
    r"Traceback \(most recent call last|core dumped|\bKilled\b|(?m:^\S*(Error|Exception): )|"
    r"\bexit code [1-9]|FAILED|(?m:^\s+File \"[^\"\n]+\", line \d+, in )"
)
"""Signs that a program failed, for any cause."""

Source = tuple[str | None, Iterable[bytes]]
"""Name of the file, or None for text given directly, and its content in blocks of any size."""


@cache
def book() -> Book:
    """All signatures, compiled once."""
    return Book(signatures.every())


def explain(
    sources: Iterable[Source], machine: Callable[[], Machine | None] = lambda: None
) -> Explained:
    """What went wrong by the sources. `machine` is called only if something was recognised."""
    scanner, names, ends = Scanner(book()), [], _Ends()
    for name, blocks in sources:
        scanner.read(ends.listen(blocks), name)
        names.append(name)
    causes = ranked(scanner.hits.values())
    if _best(causes) < SURE and len(names) == 1 and (text := ends.whole()) is not None:
        causes = _tried_again(text, names[0], causes)
    explains = any(cause.role is not Role.HARMLESS for cause in causes)
    examined = machine() if explains else None
    text = ends.both()
    sure = not explains or len(names) > 1 or ending.accounts_for(causes, text, book())
    matches = tuple(_match(cause, examined, sure) for cause in causes)
    better: tuple[BetterLog, ...] = ()
    if not explains and (not causes or compiled(FAILED).search(text)):
        hints = signatures.better_logs()
        fits = [hint for hint in hints if any(compiled(p).search(text) for p in hint.any)]
        better = tuple(fits[:3]) or tuple(hint for hint in hints if not hint.any)
    files = tuple(name for name in names if name is not None)
    known: tuple[Wording, ...] = ()
    if matches and matches[0].signature.family == MEMORY:
        known = memory_figures.observations(lines.clean(text).decode("utf-8", "replace"), examined)
    elif any(match.id.startswith(TIMED_OUT) for match in matches):
        known = collectives.observations(lines.clean(text).decode("utf-8", "replace"))
    return Explained(matches, better, files, scanner.bytes_read, known)


def explain_text(text: str, machine: Callable[[], Machine | None] = lambda: None) -> Explained:
    """The same for one text."""
    return explain([(None, [text.encode("utf-8", "replace")])], machine)


def of_crash(
    texts: Sequence[bytes],
    machine: Callable[[], Machine | None],
    records: Iterable[tuple[int, wire.Record]] = (),
) -> Explained | None:
    """What ended a program, from its last lines and records, or None if not recognised."""
    answer = explain([(None, [b"\n".join(texts)])], machine)
    if not answer.recognised:
        return None
    record = scene.record_of(records)
    if record is None or not answer.matches:
        return answer
    root = answer.matches[0]
    memory = root.signature.family == MEMORY
    said = scene.observations(record, root.signature.family, memory)
    answer = replace(answer, observations=(*said, *answer.observations))
    if not (memory and record.grows and root.id.startswith(GENERAL_OUT_OF_MEMORY)):
        return answer
    if root.id == LEAK or root.signature.specificity >= SURE:
        return answer
    # Memory grew with the steps, so a leak is the root cause.
    leak = next(entry for entry in signatures.every() if entry.id == LEAK)
    values = {**_constants(), **root.captured}
    cure = []
    for step in leak.cure:
        commands = tuple(filling.command(line, values) for line in step.commands)
        cure.append(FilledStep(filling.wording(step.text, values), commands))
    cause = replace(
        root,
        signature=leak,
        confidence=Confidence.LIKELY,
        title=filling.wording(leak.title, values),
        cause=filling.wording(leak.cause, values),
        cure=tuple(cure),
        consequence_of=None,
    )
    others = (item for item in answer.matches[1:] if item.id != LEAK)
    return replace(answer, matches=(cause, replace(root, consequence_of=LEAK), *others))


class _Ends:
    """Keeps the beginning and the end of what is read."""

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._more = False

    def listen(self, blocks: Iterable[bytes]) -> Iterable[bytes]:
        for block in blocks:
            if not self._more and len(self._head) + len(block) <= SMALL:
                self._head += block
            else:
                self._more = True
                self._tail = (self._tail + block[-TAIL:])[-TAIL:]
            yield block

    def whole(self) -> bytes | None:
        """The whole text, or None if there was more."""
        return None if self._more else self._head

    def both(self) -> bytes:
        return self._head + self._tail


def _best(causes: Sequence[RankedCause]) -> int:
    """How good an answer is: any explanation ranks before harmless matches."""
    if not causes:
        return -SURE
    return causes[0].specificity - (10 if causes[0].role is Role.HARMLESS else 0)


def _tried_again(text: bytes, name: str | None, before: list[RankedCause]) -> list[RankedCause]:
    """Rejoin messages that prefixes or hard line ends cut in two, and keep the better answer.

    Line numbers stay valid without prefixes; for joined lines they are those of the joint.
    """
    best = before
    whole = lines.clean(text).decode("utf-8", "replace")
    rows = [lines.stripped(line) for line in re.split(r"\r?\n", whole)]
    # A terminal cut the lines that are as long as the longest.
    width = max(map(len, rows), default=0)
    unwrapped = "".join(row if len(row) == width else f"{row}\n" for row in rows)
    for joined in ("\n".join(rows), unwrapped, "".join(rows)):
        scanner = Scanner(book())
        scanner.read([joined.encode()], name)
        causes = ranked(scanner.hits.values())
        if _best(causes) > _best(best):
            best = causes
        if _best(best) >= SURE:
            break
    return best


@cache
def _constants() -> dict[str, str]:
    """Placeholders that do not depend on the log."""
    return {signatures.WHEELS: pytorch.index_url("").rstrip("/")}


def _match(cause: RankedCause, machine: Machine | None, sure: bool) -> Match:
    """sure: whether the causes account for the error that ends the text."""
    hit = cause.first
    signature = hit.signature
    root = cause.consequence_of
    values = {**_constants(), **hit.captured}
    level = confidence(cause)
    if not sure:  # another error ends the text; a warning is hardly its cause
        if cause.role is Role.WARNING:
            level = Confidence.LOW
        elif level is Confidence.HIGH:
            level = Confidence.LIKELY
    return Match(
        signature=signature,
        confidence=level,
        evidence=hit.evidence,
        title=filling.wording(signature.title, values),
        cause=filling.wording(signature.cause, values),
        cure=_cure(hit, values, machine),
        captured=hit.captured,
        count=cause.count,
        ranks=cause.ranks,
        consequence_of=root.id if root is not None else None,
    )


def _cure(hit: Hit, values: Mapping[str, str], machine: Machine | None) -> tuple[FilledStep, ...]:
    """The steps: first those the text or this machine suggests, last those that do not apply.

    Otherwise the signature's order holds: how likely they help anywhere.
    """
    steps = []
    for step, in_text in zip(hit.signature.cure, hit.applies, strict=True):
        commands = tuple(filling.command(line, values) for line in step.commands)
        applies = None
        if in_text:  # the text is about the machine that wrote it, maybe not this one
            applies = True
        elif step.when is not None and machine is not None:
            applies = conditions.MACHINE[step.when](machine)
        place = 0 if in_text or (applies and step.when not in conditions.COMMON) else 1
        if applies is False:
            place = 3
        elif in_text is False:
            place = 2
        steps.append((place, FilledStep(filling.wording(step.text, values), commands, applies)))
    return tuple(filled for _, filled in sorted(steps, key=lambda placed: placed[0]))
