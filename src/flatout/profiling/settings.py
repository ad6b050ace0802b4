"""The progress of a profile, in lines."""

from __future__ import annotations

import sys
from contextlib import suppress

from flatout.nouns.observer import Silent


class Lines(Silent):
    """An Observer that tells each part of the work on stderr: the terminal is the script's."""

    def phase(self, text: str) -> None:
        """A new part begins."""
        with suppress(OSError, AttributeError):  # stderr may be closed: no reason not to run
            sys.stderr.write(f"flatout: {text}\n")
            sys.stderr.flush()
