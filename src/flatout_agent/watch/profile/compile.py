"""What torch.compile says of itself: whether it is in use, recompilations and graph breaks."""

from __future__ import annotations

import sys
from typing import Any

MOST = 16


def in_use() -> bool:
    """Whether torch.compile has looked at any code of this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"].get("total"))


def recompiles() -> tuple[str, ...]:
    """The reason of each recompilation, the newest last, with the function that was compiled."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    told = []
    for one in dynamo.get_compilation_metrics() if dynamo is not None else ():
        reason = getattr(one, "recompile_reason", None)
        if reason:
            told.append(f"{one.co_name} ({one.co_filename}:{one.co_firstlineno}): {_line(reason)}")
    return tuple(told[-MOST:])


def graph_breaks() -> tuple[str, ...]:
    """Each distinct graph break, as torch words it, with the innermost line."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return ()
    told: dict[str, None] = {}
    for one in getattr(dynamo, "graph_break_reasons", ()):
        frame = one.user_stack[-1] if one.user_stack else None
        line = f' File "{frame.filename}", line {frame.lineno}' if frame is not None else ""
        told[f"{_line(one.reason)}{line}"] = None
    return tuple(list(told or map(_line, dynamo.counters["graph_break"]))[:MOST])


def _line(text: Any) -> str:
    return " ".join(str(text).split())
