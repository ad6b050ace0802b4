"""Why a model cannot be captured, in plain words, with the place in its code and the remedy."""

from __future__ import annotations

import linecache
import re
import sys
from types import FrameType, TracebackType

from flatout_agent import wire
from flatout_agent.watch import places

GENERATION = (
    "use an engine made for generation: vLLM (GPU) or OpenVINO GenAI (CPU) load the saved model "
    "themselves; flatout export is for models that answer in one forward pass"
)
ONE_PATH = (
    "compute both results and choose between them with torch.where, or write the branch as "
    "torch.cond; a check of bad input can move out of forward, before the call"
)
NUMBER_TAKEN = (
    "keep the value in a tensor (without .item(), int(), float() or tolist()), or compute it "
    "before the call and give it to the model as an argument"
)
NUMPY = "write the part that uses NumPy with torch operators: torch has most of them by that name"
PADDED = (
    "give nn.LSTM and nn.GRU the padded batch in evaluation, and mask or select by length after it"
)
_CAUSE = re.compile(r"Could not (guard on|extract specialized integer from)")


class CannotCapture(Exception):  # noqa: N818  # an answer
    """A model that cannot be captured: the obstacle, what to do, and where."""

    def __init__(self, reason: str, cure: str = "", where: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cure = cure
        self.where = where

    def record(self) -> wire.ExportRefused:
        return wire.ExportRefused(self.reason, self.cure, self.where)


def of_export(error: Exception) -> CannotCapture:
    """The refusal for torch.export's error."""
    place = innermost(error.__traceback__)
    code = source(place)
    said = f"{place}: {code}" if place and code else place or ""
    text = str(error)
    where = (place,) if place else ()
    found = _CAUSE.search(text)
    if found is not None and found[1] == "guard on":
        reason = (
            f"forward decides by a value that it computes ({said}): torch.export follows one path "
            f"through the program and cannot keep such a decision"
        )
        return CannotCapture(reason, ONE_PATH, where)
    if found is not None:
        reason = (
            f"forward takes a number out of a tensor and computes with it in Python ({said}): "
            f"the exported program would keep the number of one input for all"
        )
        return CannotCapture(reason, NUMBER_TAKEN, where)
    if any("pack" in line for line in (code, text)) and "packed" in f"{code}{text}".lower():
        reason = f"the recurrent layer works on packed sequences ({said}), whose lengths are values"
        return CannotCapture(reason, PADDED, where)
    if "numpy" in text.lower():
        reason = f"forward leaves torch for NumPy ({said}), which torch.export cannot follow"
        return CannotCapture(reason, NUMPY, where)
    return CannotCapture(
        f"torch.export cannot take it ({_first(error)}) {said}".rstrip(), "", where
    )


def of_call(error: Exception, what: str) -> CannotCapture:
    """Why a call of the evaluation copy failed."""
    place = innermost(error.__traceback__)
    at = f" at {place}" if place else ""
    return CannotCapture(
        f"{what} fails{at}: {_first(error)}",
        "see that the model runs on the CPU in eval() mode under torch.no_grad()",
        (place,) if place else (),
    )


def _first(error: Exception) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line.strip()[:300]}"


def innermost(trace: TracebackType | None) -> str | None:
    """file:line of the innermost frame of the user's code, else of code that is neither torch's nor
    ours.
    """
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    own = [entry for entry in frames if places.user_frame(entry[0]) is entry[0]]
    foreign = [entry for entry in frames if _foreign(entry[0])]
    chosen = next(reversed(own or foreign), None)
    if chosen is None:
        return None
    frame, line = chosen
    return f"{places.display(frame.f_code.co_filename)}:{line}"


def place_now() -> str | None:
    """file:line of the running user code, or None if there is none on this thread."""
    frame = places.user_frame(sys._getframe(1))
    return places.location(frame) if frame is not None else None


def source(place: str | None) -> str:
    """The line of code at file:line, or empty if it cannot be read."""
    if place is None:
        return ""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip()


def _foreign(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    ours = file.startswith((*places.OURS, "<"))
    return not ours and places.package(file) not in ("torch", "python")
