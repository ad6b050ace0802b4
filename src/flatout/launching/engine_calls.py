"""Call an engine's programs (squeue, kubectl, ssh ...) and turn their errors into UserError."""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from flatout.nouns.errors import UserError

LIMIT_S = 60.0


@dataclass(frozen=True)
class ToolAnswer:
    """The answer of an engine's program."""

    returncode: int
    """-1 if it did not answer in time or could not be started."""
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Its last line that is not blank: from stderr, else from stdout."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.returncode}"


def need(program: str, next_step: str) -> str:
    """The full path of `program`. Raises UserError with that next step if it is not found."""
    path = shutil.which(program)
    if path is None:
        raise UserError(f"{program} is not installed here", next_step)
    return path


def ask(
    command: Sequence[str],
    limit_s: float = LIMIT_S,
    given: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ToolAnswer:
    """Run it to its end. given: its standard input; env: None for this process's. Never raises."""
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    try:
        # An ssh that stays for the next call may keep it open: a pipe would not end.
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            done = subprocess.run(
                list(command),
                **source,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
            errors.seek(0)
            return ToolAnswer(done.returncode, done.stdout, errors.read())
    except subprocess.TimeoutExpired:
        return ToolAnswer(-1, "", f"{command[0]} did not answer within {limit_s:.0f} s")
    except OSError as error:
        return ToolAnswer(-1, "", f"{command[0]}: {error.strerror or error}")


def meaning(text: str, table: Iterable[tuple[str, str, str]]) -> tuple[str, str] | None:
    """What a tool's message means and what to do, or None if it is not in the table.

    table: words (in any case), their meaning, the next step. The first row found in `text` counts.
    """
    lowered = text.lower()
    rows = ((means, step) for words, means, step in table if words.lower() in lowered)
    return next(rows, None)


def lines_of(
    command: Sequence[str], held: bool = False, errors: bool = True
) -> Iterator[str | None]:
    """The lines of a running program, or None if there is nothing new. Ends when it has ended.

    Closing the iterator ends the program. held: its input stays open until then.
    errors: stderr is included.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE if held else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for whoever follows
    )
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, waiting), daemon=True)
    reader.start()
    try:
        while True:
            try:
                line = waiting.get_nowait()
            except queue.Empty:
                yield None
                continue
            if line is None:
                return
            yield line
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        reader.join(5)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _read(process: subprocess.Popen[str], waiting: queue.SimpleQueue[str | None]) -> None:
    """Hand over each line, and None after the last."""
    assert process.stdout is not None
    for line in process.stdout:
        waiting.put(line.rstrip("\n"))
    waiting.put(None)
