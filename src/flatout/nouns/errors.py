"""UserError: an error that the user can fix; shown with the next step, without a traceback."""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell shows it."""


class UserError(Exception):
    """Ends the command. Printed as `flatout: message` and, if there is one, `next: next_step`.

    exit_code: 2 for wrong usage or input (the default), 1 if the answer is "no", or INTERRUPTED.
    """

    def __init__(self, message: str, next_step: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code
