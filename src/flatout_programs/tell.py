"""The answers of this folder's programs: one JSON object a line, after a mark.

Each program is a file that the user's Python runs, so its own folder is first on `sys.path`. That
is how it finds this module; `begin` removes the folder again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable  # cannot be subscripted before Python 3.9

    Tell = Callable[[dict[str, Any]], None]

MARK = "flatout-answer "
"""Begins each line: anything else on stdout is not an answer."""
FOLDER = Path(__file__).resolve().parent


def begin() -> Tell:
    """A function that writes one answer. From here on, the output of imports goes to stderr, even
    if it bypasses Python's own stdout; no compiled files are written.
    """
    sys.dont_write_bytecode = True
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != FOLDER]
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(answer: dict[str, Any]) -> None:
        out.write(MARK + json.dumps(answer) + "\n")
        out.flush()

    return tell


def end() -> None:
    """End the program without the time, and the crashes, of unloading libraries."""
    os._exit(0)


def load(package: str) -> None:
    """Import a package from beside this folder, and nothing else from there."""
    if package in sys.modules:
        return
    folder = FOLDER.parent / package
    spec = importlib.util.spec_from_file_location(
        package, str(folder / "__init__.py"), submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
