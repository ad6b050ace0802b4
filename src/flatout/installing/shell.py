"""Lines to paste: how bash and PowerShell quote, call a program and write comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from flatout.installing.target import Target
from flatout.nouns.finding import Sentence

PLAIN = re.compile(r"[\w@%+=:,./~\\-]+", re.ASCII)
"""Words without special meaning in either shell (a backslash only in Windows paths)."""
RESTARTS = ("reboot", "sudo reboot", "Restart-Computer", "Restart-Computer -Confirm")


def is_powershell(target: Target) -> bool:
    """Whether the Target's lines are for PowerShell."""
    return target.system == "Windows"


def quote(target: Target, word: str) -> str:
    """The word as one argument."""
    if is_powershell(target):
        plain = PLAIN.fullmatch(word) and not word.startswith(("@", "%", "-")) and "," not in word
        return word if plain else "'" + word.replace("'", "''") + "'"
    if PLAIN.fullmatch(word) and "\\" not in word:
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def program(target: Target, path: str) -> str:
    """A program's path at the start of a line."""
    quoted = quote(target, path)
    return f"& {quoted}" if is_powershell(target) and quoted != path else quoted


def python(target: Target) -> str:
    """The Target's interpreter at the start of a line."""
    default = "python" if target.system == "Windows" else "python3"
    return program(target, target.executable or default)


def python_code(target: Target, code: str) -> str:
    """The line that runs `code`, which holds neither double quotes nor dollar signs."""
    return f'{python(target)} -c "{code}"'


def is_restart(line: str) -> bool:
    """Whether the line restarts the machine."""
    return line.strip() in RESTARTS


def remark(text: str) -> str:
    """A comment, for both shells; it may hold a command."""
    return f"# {' '.join(text.split())}"


def remarks(lines: Iterable[str]) -> Iterator[str]:
    """Commands that are shown but not run: each as a comment; comments are unchanged."""
    return (line if line.startswith("#") else f"# {line}" for line in lines)


def sentence(text: str) -> Sentence:
    """A comment to read, never to copy."""
    return Sentence(remark(text))


def why(reason: str) -> Sentence:
    """The comment that gives the reason for the lines below it."""
    return sentence(f"why: {reason}")
