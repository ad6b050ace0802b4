"""What the server says: refusals to its clients, lines to whoever started it."""

from __future__ import annotations

import json
import sys

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body, headers."""


class HttpRefusal(Exception):  # noqa: N818 - it is raised to be answered
    """Answered as `{"error": message}` with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refused(error: HttpRefusal) -> Answer:
    again = {"Retry-After": "1"} if error.status == 503 else {}
    body = json.dumps({"error": str(error)}).encode()
    return error.status, body, {"Content-Type": "application/json", **again}


def say(text: str) -> None:
    sys.stderr.write(f"serve.py: {text}\n")
    sys.stderr.flush()
