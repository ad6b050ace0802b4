"""The way in: call the command, and tell the user what went wrong without a traceback of ours."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import typer

from flatout import commands
from flatout.nouns.errors import INTERRUPTED, UserError

INTERNAL_ERROR = 70
TRACEBACK_ENV = "FLATOUT_TRACEBACK"
"""Set to anything: errors inside flatout keep their traceback."""


def main() -> None:
    """Run the command on the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that lacks a sign is no error
    sys.exit(outcome(sys.argv[1:]))


def outcome(arguments: Sequence[str]) -> int:
    """The exit code of `flatout arguments...`; errors are told on stderr."""
    try:
        code = commands.call(arguments)
        if sys.stdout is not None:  # closed by the caller: `>&-`
            sys.stdout.flush()
        return code
    except UserError as error:
        return _tell(error.message, error.next_step, error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        known = ["flatout", *(item for item in arguments[:1] if item in commands.names())]
        asked = context.command_path if context is not None else " ".join(known)
        return _tell(error.format_message().rstrip("."), f"{asked} --help", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _tell("interrupted", None, INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from flushing into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _tell(
            _describe(error), "check the folder's rights and free space, then run it again"
        )
    except Exception as error:
        if TRACEBACK_ENV in os.environ:
            raise
        text = f"internal error: {type(error).__name__}: {error}"
        return _tell(text, f"run it again with {TRACEBACK_ENV}=1 and report it", INTERNAL_ERROR)


def _describe(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _tell(message: str, next_step: str | None, exit_code: int = 2) -> int:
    lines = [f"flatout: {message}"]
    if next_step:
        lines.append(f"  next: {next_step}")
    sys.stderr.write("\n".join(lines) + "\n")
    return exit_code


if __name__ == "__main__":
    main()
