"""Whether the requested model can exist at all, reported at the first step rather than at the end.

A model may still be created later: an average of the weights, the second of two networks. So a name
is wrong only if no module has it as class or attribute, and the script's own files do not even
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
"""A larger file counts as data with unknown contents."""


def cannot_be(name: str, roots: Roots) -> CannotCapture | None:
    """Why there is no such model and never will be, or None if there is one or may be."""
    word = name.rpartition(".")[2]
    known = _of_modules() | {own for root in roots for own in root.names}
    if word in known or _is_written(word):
        return None
    refused = roots.not_called(name)
    near = difflib.get_close_matches(word, sorted(known), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    reason = f"{refused.reason}, and nothing in the script has that name: the script was ended"
    return CannotCapture(reason, f"{hint}{refused.cure}")


def _of_modules() -> set[str]:
    """Class and attribute names of all existing modules."""
    names: set[str] = set()
    for value in gc.get_objects():
        # Not isinstance: the `__class__` of a lazy proxy runs code.
        if issubclass(type(value), nn.Module):
            names.add(type(value).__name__)
            names.update(value.__dict__.get("_modules") or {})
    return names


def _is_written(word: str) -> bool:
    """Whether the word occurs in one of the script's files, or one of them cannot be read."""
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
    except FileNotFoundError:  # torch.ops claims to be a file
        return False
    except OSError:
        return True
