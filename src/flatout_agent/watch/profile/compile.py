"""torch.compile's own reports: whether it is in use, recompilations and graph breaks."""

from __future__ import annotations

import sys
from typing import Any

MOST = 16


def in_use() -> bool:
    """Whether torch.compile has looked at any code of this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"].get("total"))


def recompiles() -> tuple[str, ...]:
    """The reason for each recompilation with the compiled function, newest last."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    reasons = []
    for metrics in dynamo.get_compilation_metrics() if dynamo is not None else ():
        reason = getattr(metrics, "recompile_reason", None)
        if reason:
            place = f"{metrics.co_filename}:{metrics.co_firstlineno}"
            reasons.append(f"{metrics.co_name} ({place}): {_line(reason)}")
    return tuple(reasons[-MOST:])


def graph_breaks() -> tuple[str, ...]:
    """Each distinct graph break, in torch's words, with the innermost line."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return ()
    breaks: dict[str, None] = {}
    for entry in getattr(dynamo, "graph_break_reasons", ()):
        frame = entry.user_stack[-1] if entry.user_stack else None
        line = f' File "{frame.filename}", line {frame.lineno}' if frame is not None else ""
        breaks[f"{_line(entry.reason)}{line}"] = None
    return tuple(list(breaks or map(_line, dynamo.counters["graph_break"]))[:MOST])


def _line(text: Any) -> str:
    return " ".join(str(text).split())
