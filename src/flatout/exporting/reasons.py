"""Errors of backends in plain words: one line for a row of the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST = 160
KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|g\+\+.*not found|CppCompileError: .*not "
        r"not found",
        "there is no C++ compiler: install g++ (apt install g++) or clang",
    ),
    (
        r"fatal error: Python\.h",
        "Python's headers are missing: install python3-dev for this interpreter",
    ),
    (
        r"(?:Unsupported function types|Unsupported function type|unsupported operator|"
        r"No decompositions registered for|Missing ONNX|UnsupportedFakeTensor|No conversion rule "
        r"found for operations?)\W*(?P<what>[\w.:,' -]+)",
        "it does not know an operator of the model: {what}",
    ),
    (r"MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate", "it ran out of memory"),
    (r"No space left on device", "the disk is full"),
    (
        r"GuardOnDataDependentSymNode|data-dependent",
        "the model's shapes depend on the values of its inputs",
    ),
)
"""(pattern over the whole error, words); {what} is the pattern's group `what`."""


def plain(answer: Mapping[str, Any]) -> str:
    """The reported reason for a worker's failure."""
    kind, first, last = (str(answer.get(key, "")) for key in ("error", "message", "last"))
    whole = f"{kind}: {first}\n{last}"
    for pattern, words in KNOWN:
        match = re.search(pattern, whole)
        if match is not None:
            what = match.groupdict().get("what") or ""
            return _short(words.format(what=what.strip(" '\"")))
    line = first or last
    if kind in ("RuntimeError", "Unfit", "ValueError") and line:
        return _short(line)
    return _short(f"{kind}: {line}" if line else kind)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST else line[: MOST - 1].rstrip() + "…"
