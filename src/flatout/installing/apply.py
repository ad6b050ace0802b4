"""Do what was shown: write the files; run the lines one by one up to the first that fails."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flatout.installing import shell
from flatout.installing.script import is_restart
from flatout.installing.target import Target
from flatout.nouns.errors import UserError


def run(target: Target, lines: Sequence[str], show: Callable[[str], None]) -> None:
    """Run the lines in the Target's shell, each in a shell of its own, showing it before.

    Remarks are shown. The restart is left to the user. Raises UserError at the first line that
    fails; after Ctrl-C the line that ran is waited for, so that it can tidy up.
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
        show(shell.remark(f"restart now, when it suits: {restart}"))


def write(files: Mapping[str, str], folder: Path, force: bool = False) -> list[Path]:
    """Write the files; without `force` none is written if one of them is there."""
    paths = {folder / name: text for name, text in files.items()}
    there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if there and not force:
        verb = "are" if len(there) > 1 else "is"
        hint = "name another folder, or add --force to write over them"
        raise UserError(f"{' and '.join(there)} {verb} there already", hint)
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
        process.wait()  # it had the same Ctrl-C; killing a package manager would leave its locks
        raise UserError(f"interrupted in: {line}", "nothing after it was run", 130) from None
    if code:
        message = f"this line failed with exit code {code}: {line}"
        raise UserError(message, "nothing after it was run; correct it and start again", 1)


def _shell(target: Target) -> tuple[str, ...]:
    names = ("pwsh", "powershell") if shell.is_powershell(target) else ("bash", "sh")
    for name in names:
        found = shutil.which(name)
        if found:
            first = ("-NoProfile", "-Command") if shell.is_powershell(target) else ("-c",)
            return (found, *first)
    raise UserError(f"no {' or '.join(names)} is here to run the lines", "paste them yourself", 1)
