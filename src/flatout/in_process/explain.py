"""`flatout.explain()`: what the last exception of a session means, and the cure."""

from __future__ import annotations

import os
import sys
import traceback

from flatout.explaining import explaining
from flatout.nouns.explained import Explained
from flatout.nouns.machine import Machine
from flatout.reporting import explained, languages, terminal
from flatout.reporting.harmless import harmless
from flatout_agent import wire
from flatout_agent.process import start

LOOK_S = 0.5
"""For facts on which steps of an error's cure depend."""


def explain(error: BaseException | str | None = None) -> None:
    """Print what an error means and what to do, as `flatout explain` does for a log.

    In a notebook, call it in the cell after the one that failed.

    Args:
        error: an exception or the text of an error, or None for the last exception that was
            printed in this session.
    """
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        terminal.say("no exception was printed in this session yet: nothing to explain")
        return
    answer = explaining.explain_text(error, _here) if isinstance(error, str) else _explained(error)
    explained.explained(answer, languages.chosen(None), terminal.answers())


def _explained(error: BaseException) -> Explained:
    text = "".join(traceback.format_exception(error))
    records: list[tuple[int, wire.Record]] = [(os.getpid(), wire.Crashed(text))]
    if "torch" in sys.modules:
        with harmless("the contents of its tensors are not shown"):
            records.append((os.getpid(), start.scene(error)))
    lines = [text.encode("utf-8", "replace")]
    return explaining.of_crash(lines, _here, records) or explaining.explain_text(text, _here)


def _here() -> Machine:
    from flatout.probing import machine

    return machine.look(sys.executable, limit_s=LOOK_S)
