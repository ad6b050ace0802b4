"""Do what was shown: write the file; run the lines one by one until one fails."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.installing import shell
from flatout.installing.target import Target
from flatout.nouns.errors import INTERRUPTED, UserError


def run(target: Target, lines: Sequence[str], show: Callable[[str], None]) -> None:
    """Show each line, then run it in its own shell, of the Target's kind.

    Comments are only shown. The restart is left to the user. Raises UserError at the first line
    that fails; after Ctrl-C it waits for the running line, which can clean up.
    """
    program = _shell(target)
    restart = None
    for line in lines:
        if shell.is_restart(line):
            restart = line
            continue
        show(line if line.startswith("#") else f"$ {line}")
        if not line.startswith("#"):
            _run(program, line)
    if restart is not None:
        show(shell.remark(f"restart when convenient: {restart}"))


def write(path: Path, text: str, force: bool = False) -> None:
    """Write the file; one that exists only with `force`."""
    if not force and (path.exists() or path.is_symlink()):
        raise UserError(f"{path} already exists", "name another folder, or add --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"cannot write into {path.parent}: {error.strerror}"
        raise UserError(message, "name another folder") from None


def _run(program: tuple[str, ...], line: str) -> None:
    process = subprocess.Popen([*program, line])
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the same Ctrl-C; a killed package manager leaves its locks
        raise UserError(f"interrupted in: {line}", "no later line was run", INTERRUPTED) from None
    if code:
        message = f"this line failed with exit code {code}: {line}"
        raise UserError(message, "no later line was run; fix it and start again", 1)


def _shell(target: Target) -> tuple[str, ...]:
    names = ("pwsh", "powershell") if shell.is_powershell(target) else ("bash", "sh")
    for name in names:
        path = shutil.which(name)
        if path:
            options = ("-NoProfile", "-Command") if shell.is_powershell(target) else ("-c",)
            return (path, *options)
    raise UserError(
        f"there is no {' or '.join(names)} here to run the lines", "paste them yourself", 1
    )
