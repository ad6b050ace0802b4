"""Do what was shown: write the files; run the lines one by one until one fails."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flatout.installing import shell
from flatout.installing.script import is_restart
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
        if is_restart(line):
            restart = line
            continue
        show(line if line.startswith("#") else f"$ {line}")
        if not line.startswith("#"):
            _run(program, line)
    if restart is not None:
        show(shell.remark(f"restart when convenient: {restart}"))


def write(files: Mapping[str, str], folder: Path, force: bool = False) -> list[Path]:
    """Write the files; without `force`, write none if one of them exists."""
    paths = {folder / name: text for name, text in files.items()}
    existing = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if existing and not force:
        verb = "exist" if len(existing) > 1 else "exists"
        hint = "name another folder, or add --force to overwrite them"
        raise UserError(f"{' and '.join(existing)} already {verb}", hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(
            f"cannot write into {folder}: {error.strerror}", "name another folder"
        ) from None
    return list(paths)


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
