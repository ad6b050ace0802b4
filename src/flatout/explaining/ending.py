"""The error that ends a text, and whether an answer accounts for it.

An answer may explain an earlier message while the error that ended the program is unknown. It may
then be about something else, and is never sure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.explaining import lines
from flatout.explaining.ranking import RankedCause
from flatout.explaining.scanning import Book
from flatout.nouns.signature import Role

KEPT_BYTES = 64 << 10
"""Bytes of a text's end that are searched for its last error."""
KEPT_LINES = 400
"""Lines of these that are searched."""
MESSAGE_LINES = 12
"""Lines of an error message that are read."""
ERROR = re.compile(
    r"^\s*(?:[|+> ]{0,8})?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|"
    r"Warning|Failure|Fault|Empty|Timeout|NotFound|Unsupported|Violation))"
    r"(?P<colon>: ?(?P<words>.*)|\s*)$"
)
"""The line in which Python names an exception."""
REPORTS = (
    "ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException",
    "SystemExit", "KeyboardInterrupt", "RayTaskError", "TrainingFailedError", "BrokenPipeError",
    "CellExecutionError", "SubprocessException", "MultiprocessingException", "NonZeroExitCode",
)  # fmt: skip
"""Exceptions that only report the end of something else."""
DIRECT_CAUSE = "was the direct cause of the following exception"
TRACEBACK = "Traceback (most recent call last)"


def last_error(text: bytes) -> str | None:
    """The last exception in a text with its message, or None if it names none."""
    rows = _rows(text)
    for place in range(len(rows) - 1, -1, -1):
        match = ERROR.match(rows[place])
        if (
            match is None
            or match["type"].endswith("Warning")
            or (match["type"].rpartition(".")[2] in REPORTS)
        ):
            continue
        if not (match["words"] or "").strip():  # an error without a message says nothing new
            return None
        message = [rows[place]]  # up to the next traceback or blank line
        for row in rows[place + 1 : place + MESSAGE_LINES]:
            if not row.strip() or row.startswith((TRACEBACK, "  File ")) or ERROR.match(row):
                break
            message.append(row)
        return "\n".join(message)
    return None


def accounts_for(causes: Sequence[RankedCause], text: bytes, book: Book) -> bool:
    """Whether the text ends with no error, or with one in which one of the causes is found."""
    message = last_error(text)
    if message is None:
        return True
    owners = {book.owners[number].id for number in book.message_patterns.search(message.encode())}
    known = {cause.id for cause in causes if cause.role is not Role.HARMLESS}
    if owners & known:
        return True
    # Its own traceback says that it follows from the previous error.
    return any(DIRECT_CAUSE in row for row in _rows(text))


def _rows(text: bytes) -> list[str]:
    decoded = lines.clean(text[-KEPT_BYTES:]).decode("utf-8", "replace")
    return [lines.stripped(row) for row in decoded.splitlines()[-KEPT_LINES:]]
