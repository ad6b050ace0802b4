"""Tells a SIGINT that came to the whole process group from one that came to flatout alone.

Ctrl-C reaches flatout and the program; the stop button of an IDE or a supervisor may interrupt
flatout alone. The signal does not say which it was: `kill` of a group looks like `kill` of one
process. So a small process runs beside the program, in the same group, and ends at its first
SIGINT. While it answers, neither it nor the program has had one.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress

WITNESS = "trap '' HUP QUIT TERM TSTP USR1 USR2; exec cat -u"
"""Repeats its input. Only SIGINT ends it, or the end of flatout, which closes its input."""
SETTLE_S = 0.05
"""Some senders interrupt several processes one after another: `timeout` and systemd do."""
ANSWER_S = 10.0


class Witness:
    """The process beside the program. If it cannot be started, nothing is known."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Watch from now on. On Windows an interrupt always goes to the whole console."""
        if sys.platform == "win32":
            return
        with suppress(OSError):
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WITNESS],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def group_had_it(self) -> bool:
        """Whether the SIGINT that has just come went to the whole group, or that is unknown.

        A second interrupt would break off the program's own clean-up.
        """
        process = self._process
        if process is None:
            return True
        time.sleep(SETTLE_S)
        if _answers(process):
            return False
        self.end()
        self.start()
        return True

    def end(self) -> None:
        """Stop watching."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()


def _answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether the witness still runs: one that had a SIGINT ends without an answer."""
    if process.stdin is None or process.stdout is None:
        return False
    try:
        os.write(process.stdin.fileno(), b"?")
        readable, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        return bool(readable) and os.read(process.stdout.fileno(), 1) == b"?"
    except (OSError, ValueError):  # it has ended, or another interrupt has closed it
        return False
