"""Whether the model that was asked for can be there at all: told at the first step, not at the end.

A model may yet be made: an average of the weights, the second of two networks. So a name is wrong
only where no module has it as class or as attribute, and where the script's own files do not even
contain the word.
"""

from __future__ import annotations

import difflib
import gc
import re
import sys
from pathlib import Path

from torch import nn

from flatout_agent.capture.refusal import CannotCapture
from flatout_agent.capture.roots import Roots
from flatout_agent.watch import places

MOST_BYTES = 4 << 20
"""A larger file is data: what it contains is not known."""


def cannot_be(name: str, roots: Roots) -> CannotCapture | None:
    """Why there is no such model and never will be; None: there is one, or there may be."""
    word = name.rpartition(".")[2]
    known = _of_modules() | {own for root in roots for own in root.names}
    if word in known or _is_written(word):
        return None
    refused = roots.not_called(name)
    near = difflib.get_close_matches(word, sorted(known), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    reason = f"{refused.reason}, and nothing in the script is called that: it was ended"
    return CannotCapture(reason, f"{hint}{refused.cure}")


def _of_modules() -> set[str]:
    """Class and attribute of every module that there is."""
    names: set[str] = set()
    for value in gc.get_objects():
        # Not isinstance: the `__class__` of a lazy proxy runs code.
        if issubclass(type(value), nn.Module):
            names.add(type(value).__name__)
            names.update(value.__dict__.get("_modules") or {})
    return names


def _is_written(word: str) -> bool:
    """The word stands in a file of the script's, or there is one that cannot be read."""
    if not hasattr(sys.modules.get("__main__"), "__file__"):
        return True  # python -c, or from stdin
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return any(_contains(file, pattern) for file in places.own_files())


def _contains(file: str, pattern: re.Pattern[str]) -> bool:
    path = Path(file)
    try:
        if path.stat().st_size > MOST_BYTES:
            return True
        return pattern.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except FileNotFoundError:  # torch.ops says that it were a file
        return False
    except OSError:
        return True
