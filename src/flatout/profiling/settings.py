"""The progress of a profile, in lines."""

from __future__ import annotations

import sys
from contextlib import suppress

from flatout.nouns.observer import Silent


class Lines(Silent):
    """An Observer that writes a line to stderr for each part of the work."""

    def phase(self, text: str) -> None:
        """Write a line: a new part begins."""
        with suppress(OSError, AttributeError):  # stderr may be closed: no reason not to run
            sys.stderr.write(f"flatout: {text}\n")
            sys.stderr.flush()
