"""The server of an artefact as a child of this process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flatout.exporting.serving.files import PORT, write
from flatout.exporting.serving.model import read


def serve(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    python: str = sys.executable,
    overlay: Path | None = None,
    options: Sequence[str] = (),
) -> int:
    """Serve until a signal ends it; the server's exit code.

    python: an interpreter with the artefact's packages. overlay: a folder of packages behind those
    of the interpreter. options: further ones of serve.py. Raises UserError where the folder holds
    no exported model.
    """
    program = read(folder).folder / "serve.py"
    if not program.is_file():
        write(folder)
    behind = ["--packages", str(overlay)] if overlay is not None else []
    command = [python, str(program), "--host", host, "--port", str(port), *behind, *options]
    process = subprocess.Popen(command)
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, lambda number, _: _pass_on(process, number))
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(process: subprocess.Popen[bytes], number: int) -> None:
    """The server ends in its own way. That Ctrl-C has reached it already does no harm."""
    if process.poll() is None:
        process.send_signal(number)
