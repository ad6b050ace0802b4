"""Run an outside program. If it is missing, fails or hangs, that is an ordinary answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramAnswer:
    """What a program printed, and how it ended."""

    text: str
    """Its output; bytes that are not valid UTF-8 are replaced."""
    code: int | None
    """Its exit code, or None if it could not be started or did not end in time."""
    problem: str | None = None
    """Why there is no exit code: `not found`, `did not answer within 5 s`, ..."""
    errors: str = ""
    """The text of its error stream."""


Ask = Callable[[Sequence[str], float], ProgramAnswer]
"""Takes the command and the limit in seconds."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Programs that survived a kill, stuck in a driver. Waiting for them could take forever."""


def ask(command: Sequence[str], limit_s: float) -> ProgramAnswer:
    """Run the program and wait at most `limit_s`; its messages are in English."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except FileNotFoundError:
        return ProgramAnswer("", None, "not found")
    except (OSError, ValueError) as error:
        return ProgramAnswer("", None, f"cannot be started: {error}")
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # Its children too, without waiting for any that cannot be killed.
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=0.2)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            _left_behind.append(process)
        return ProgramAnswer("", None, f"did not answer within {limit_s:g} s")
    return ProgramAnswer(_decoded(output), process.returncode, errors=_decoded(errors))


def _decoded(output: bytes) -> str:
    return output.decode("utf-8", errors="replace")
