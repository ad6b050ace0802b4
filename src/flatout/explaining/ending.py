"""The error with which a text ends, and whether an answer accounts for it.

An answer that explains an earlier message of a log, while the error that ended the program is
unknown, may well be about something else: it is never sure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flatout.explaining import lines
from flatout.explaining.ranking import RankedCause
from flatout.explaining.scanning import Book
from flatout.nouns.signature import Role

KEPT_BYTES = 64 << 10
"""Bytes of a text's end in which its last error is looked for."""
KEPT_LINES = 400
"""Lines of them."""
MESSAGE_LINES = 12
"""Lines of one error's message that are read."""
ERROR = re.compile(
    r"^\s*(?:[|+> ]{0,8})?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|"
    r"Warning|Failure|Fault|Empty|Timeout|NotFound|Unsupported|Violation))"
    r"(?P<colon>: ?(?P<words>.*)|\s*)$"
)
"""The line by which Python names an exception."""
REPORTS = (
    "ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException",
    "SystemExit", "KeyboardInterrupt", "RayTaskError", "TrainingFailedError", "BrokenPipeError",
    "CellExecutionError", "SubprocessException", "MultiprocessingException", "NonZeroExitCode",
)  # fmt: skip
"""Exceptions that only pass on the end of something else."""
DIRECT_CAUSE = "was the direct cause of the following exception"
TRACEBACK = "Traceback (most recent call last)"


def last_error(text: bytes) -> str | None:
    """The last exception of a text with its message; None: it names none."""
    rows = _rows(text)
    for place in range(len(rows) - 1, -1, -1):
        match = ERROR.match(rows[place])
        if match is None or match["type"].endswith("Warning") or _is_report(match["type"]):
            continue
        if not (match["words"] or "").strip():  # an error without words says nothing new
            return None
        return "\n".join(_message(rows[place:]))
    return None


def accounts_for(causes: Sequence[RankedCause], text: bytes, book: Book) -> bool:
    """Whether one of the causes is found in the error that ends the text, or it ends with none."""
    message = last_error(text)
    if message is None:
        return True
    owners = {book.owners[number].id for number in book.message_patterns.search(message.encode())}
    known = {cause.id for cause in causes if cause.role is not Role.HARMLESS}
    if owners & known:
        return True
    # Its traceback says itself that it follows from the error before.
    return any(DIRECT_CAUSE in row for row in _rows(text))


def errors(text: bytes) -> Iterable[str]:
    """Every exception in the end of a text with its message, the last first, each once."""
    rows = _rows(text)
    messages = (
        "\n".join(_message(rows[place:]))
        for place in range(len(rows) - 1, -1, -1)
        if (match := ERROR.match(rows[place])) and not _is_report(match["type"])
    )
    return dict.fromkeys(messages)


def _rows(text: bytes) -> list[str]:
    decoded = lines.clean(text[-KEPT_BYTES:]).decode("utf-8", "replace")
    return [lines.stripped(row) for row in decoded.splitlines()[-KEPT_LINES:]]


def _message(rows: Sequence[str]) -> list[str]:
    """The lines of an error up to the next traceback or blank line."""
    message = list(rows[:1])
    for row in rows[1:MESSAGE_LINES]:
        if not row.strip() or row.startswith((TRACEBACK, "  File ")) or ERROR.match(row):
            break
        message.append(row)
    return message


def _is_report(kind: str) -> bool:
    return kind.rpartition(".")[2] in REPORTS
