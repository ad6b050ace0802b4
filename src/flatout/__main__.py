"""The way in: call the command, and tell the user what went wrong without a traceback of ours."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

import typer

from flatout import commands
from flatout.nouns.errors import INTERRUPTED, UserError

INTERNAL_ERROR = 70
ERROR = "flatout.error/1"
"""The document of an error: error, next (null where nothing is known), exit_code."""
TRACEBACK_ENV = "FLATOUT_TRACEBACK"
"""Set to anything: errors inside flatout keep their traceback."""


def main() -> None:
    """Run the command on the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that lacks a sign is no error
    sys.exit(outcome(sys.argv[1:]))


def outcome(arguments: Sequence[str]) -> int:
    """The exit code of `flatout arguments...`.

    Errors are told on stderr, and with --json on stdout too, as a document `flatout.error/1`.
    """
    try:
        code = commands.call(arguments)
        if sys.stdout is not None:  # closed by the caller: `>&-`
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from flushing into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        told = _understood(error, arguments)
        if told.exit_code == INTERNAL_ERROR and TRACEBACK_ENV in os.environ:
            raise
        _tell(told, _wants_json(arguments))
        return told.exit_code


def _understood(error: BaseException, arguments: Sequence[str]) -> UserError:
    """What went wrong, and what to do next."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return UserError("interrupted", exit_code=INTERRUPTED)
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        known = ["flatout", *(item for item in arguments[:1] if item in commands.names())]
        asked = context.command_path if context is not None else " ".join(known)
        return UserError(
            error.format_message().rstrip("."), f"{asked} --help", exit_code=error.exit_code
        )
    if isinstance(error, OSError):
        cure = "check the folder's rights and free space, then run it again"
        return UserError(_describe(error), cure)
    text = f"internal error: {type(error).__name__}: {error}"
    return UserError(text, f"run it again with {TRACEBACK_ENV}=1 and report it", INTERNAL_ERROR)


def _describe(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether --json stands before the user's program, whose options are its own."""
    return "--json" in takewhile(
        lambda word: word not in ("--", "-m") and not word.endswith((".py", ".pyw")), arguments
    )


def _tell(told: UserError, as_json: bool) -> None:
    lines = [f"flatout: {told.message}"]
    if told.next_step:
        lines.append(f"  next: {told.next_step}")
    sys.stderr.write("\n".join(lines) + "\n")
    if as_json:
        import json

        document = {"error": told.message, "next": told.next_step, "exit_code": told.exit_code}
        with suppress(OSError, AttributeError):  # stdout may be closed
            sys.stdout.write(json.dumps({"schema": ERROR, **document}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
