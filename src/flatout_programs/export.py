"""Builds, verifies and times one candidate of `flatout export`, in the user's Python.

One JSON object as the argument: `do` is prepare, packages, build or serve. `serve` reads further
orders from stdin, one JSON object a line, and answers each with a line.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout_programs.tell import Tell


def main(arguments: list[str], tell: Tell) -> None:
    """Carry out the order, and answer; a failure is an answer too."""
    order = json.loads(arguments[0])
    try:
        {"prepare": _prepare, "packages": _packages, "build": _build, "serve": _serve}[order["do"]](
            order, tell
        )
    except BaseException as error:
        tell(failure(error))
        if not isinstance(error, Exception):
            raise


def failure(error: BaseException) -> dict[str, Any]:
    """An error as an answer; the whole of it goes to stderr."""
    traceback.print_exc()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return {
        "error": type(error).__name__,
        "message": lines[0] if lines else "",
        "last": lines[-1] if lines else "",
    }


def _prepare(order: dict[str, Any], tell: Tell) -> None:
    from flatout_programs.exporting import prepare

    tell(prepare.prepare(Path(order["capture"]), Path(order["prepared"]), order["threads"]))


def _packages(order: dict[str, Any], tell: Tell) -> None:
    """Version of each module that can be imported, or null if it is missing."""
    import importlib.metadata
    import importlib.util

    found: dict[str, str | None] = {}
    for pip, module in order["packages"]:
        try:
            there = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            there = False
        try:
            version = importlib.metadata.version(pip) if there else None
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
        found[pip] = version
    tell({"versions": found})


def _build(order: dict[str, Any], tell: Tell) -> None:
    from flatout_programs import backends
    from flatout_programs.exporting.captured import Captured

    captured = Captured(Path(order["capture"]), Path(order["prepared"]))
    folder = Path(order["folder"])
    settings = {"threads": order["threads"]}
    options = backends.load(order["backend"]).build(captured, folder, order["variant"], settings)
    tell({"options": options or {}})


def _serve(order: dict[str, Any], tell: Tell) -> None:
    from flatout_programs.exporting.serving import Server

    prepared = Path(order["prepared"])
    facts = json.loads((prepared / "prepared.json").read_text(encoding="utf-8"))
    server = Server(Path(order["folder"]), prepared, facts, order["threads"])
    tell({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            tell(getattr(server, command["do"])(command))
        except Exception as error:
            tell(failure(error))


if __name__ == "__main__":
    from tell import begin, end, load  # type: ignore[import-not-found]  # a file of this folder

    answer = begin()
    load("flatout_programs")
    main(sys.argv[1:], answer)
    end()
