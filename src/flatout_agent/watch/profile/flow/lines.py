"""The user's lines on the stack of an operator."""

from __future__ import annotations

from types import FrameType

from flatout_agent.watch import places
from flatout_agent.watch.profile.flow.records import FlowLine, Stack

DEEPEST = 24
"""The most lines recorded of one stack."""


class FlowLines:
    """Keeps each line object once, as operators of a loop share lines."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], FlowLine] = {}
        self._texts: dict[FlowLine, str] = {}

    def stack(self, frame: FrameType | None) -> Stack:
        """The user's lines from this frame outwards."""
        lines: list[FlowLine] = []
        frame = places.user_frame(frame)
        while frame is not None and len(lines) < DEEPEST:
            code = frame.f_code
            key = code.co_filename, frame.f_lineno, code.co_name
            line = self._known.get(key)
            if line is None:
                line = self._known[key] = FlowLine(*key)
            lines.append(line)
            frame = places.user_frame(frame.f_back)
        return tuple(lines)

    def where(self, stack: Stack) -> str | None:
        """file:line of the innermost of them."""
        if not stack:
            return None
        where = self._texts.get(stack[0])
        if where is None:
            where = self._texts[stack[0]] = str(stack[0])
        return where
