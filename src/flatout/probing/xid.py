"""Xid errors, which NVIDIA's driver has written to the kernel's log since boot.

Ordinary users often may not read the log; the answer is then None.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from flatout.nouns.machine import Xid
from flatout.probing import program_answer

KERNEL_LOG = Path("/dev/kmsg")
LIMIT_S = 0.3
"""Seconds for all ways of reading the log together."""
LONGEST_TEXT = 300
LONGEST_RECORD = 8192

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<place>[0-9a-fA-F:.]+)?[^)\n]{0,80}\): (?P<number>\d{1,6})\b"
    r"(?:,[ \t]*(?P<text>[^\n]*))?"
)
_PLACE = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


def xids(
    trace: bool,
    ask: program_answer.Ask = program_answer.ask,
    log: Path = KERNEL_LOG,
    limit_s: float = LIMIT_S,
) -> tuple[Xid, ...] | None:
    """The errors by number and GPU, or None if the log may not be read.

    trace: whether there is a trace of NVIDIA's driver; without it nothing is read.
    """
    if not trace or sys.platform != "linux":
        return None
    deadline = time.monotonic() + limit_s
    lines = _records(log, deadline)
    if lines is None:
        answer = _answer_within(ask, ["dmesg"], deadline)
        lines = answer.text.splitlines() if answer.code == 0 and answer.text.strip() else None
    if lines is None:
        lines = _journal(ask, deadline)
    return None if lines is None else parse(lines)


def parse(lines: Iterable[str]) -> tuple[Xid, ...]:
    """The errors in these lines by first occurrence, each with its last text."""
    errors: dict[tuple[int, str | None], Xid] = {}
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            continue
        number, place = int(match["number"]), None
        if parts := _PLACE.fullmatch((match["place"] or "").lower()):  # as in all other sources
            domain = int(parts[1] or "0", 16)
            place = f"{domain:04x}:{parts[2]}:{parts[3]}.{parts[4] or '0'}"
        text = (match["text"] or "").strip()[:LONGEST_TEXT] or None
        previous = errors.get((number, place))
        errors[number, place] = Xid(number, place, previous.count + 1 if previous else 1, text)
    return tuple(errors.values())


def _records(log: Path, deadline: float) -> list[str] | None:
    """The kernel's own records, one per read, up to the newest, or None if not permitted."""
    if sys.platform == "win32":
        return None
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    lines: list[str] = []
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(handle, LONGEST_RECORD)
            except BlockingIOError:  # the newest has been read
                return lines
            except BrokenPipeError:  # overwritten while reading; the next read continues after it
                continue
            except OSError:
                return None
            if not record:
                return lines
            if b"NVRM: Xid" in record:
                lines.extend(record.decode("utf-8", errors="replace").splitlines())
        return None
    finally:
        os.close(handle)


def _journal(ask: program_answer.Ask, deadline: float) -> list[str] | None:
    journal = ["journalctl", "-k", "-b", "--no-pager", "-q", "-o", "cat"]
    answer = _answer_within(ask, [*journal, "-g", "NVRM: Xid"], deadline)
    if answer.code not in (0, 1):  # 1: nothing matches
        return None
    if answer.text.strip():
        return answer.text.splitlines()
    # The output is the same if there are no such lines and if this user may not read the log.
    any_line = _answer_within(ask, [*journal, "-n", "1"], deadline)
    is_readable = any_line.code == 0 and any_line.text.strip()
    return [] if is_readable and not answer.errors.strip() else None


def _answer_within(
    ask: program_answer.Ask, command: list[str], deadline: float
) -> program_answer.ProgramAnswer:
    left_s = deadline - time.monotonic()
    return (
        ask(command, left_s)
        if left_s > 0.01
        else program_answer.ProgramAnswer("", None, "no time left")
    )
