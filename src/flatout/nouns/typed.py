"""A command as it is typed in a shell of this system."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence


def typed(words: Sequence[str]) -> str:
    """The words in one line, quoted where this system's shell needs it."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
