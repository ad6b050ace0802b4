"""UserError: what the user can put right; shown with the next step, never as a traceback."""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell shows it."""


class UserError(Exception):
    """Ends the command. Printed as `flatout: message` and, where there is one, `next: next_step`.

    exit_code: 2 wrong usage or input (the default), 1 the answer is "no", INTERRUPTED.
    """

    def __init__(self, message: str, next_step: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code
