"""How a profile is asked for: times as people write them, and progress in lines."""

from __future__ import annotations

import sys
from contextlib import suppress

from flatout.nouns import units
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Silent


def seconds(text: str) -> float:
    """90, 90s, 10m, 1.5h in seconds. Raises UserError for anything else."""
    found = units.seconds(text)
    if found is None:
        raise UserError(f"--skip {text!r} is not a time", "write it as 60s or 2m")
    return found


class Lines(Silent):
    """An Observer that tells each part of the work on stderr: the terminal is the script's."""

    def phase(self, text: str) -> None:
        """A new part begins."""
        with suppress(OSError, AttributeError):  # stderr may be closed: no reason not to run
            sys.stderr.write(f"flatout: {text}\n")
            sys.stderr.flush()
