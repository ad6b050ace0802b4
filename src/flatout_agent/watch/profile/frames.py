"""Which instructions a thread of this process executes, from its innermost frame outwards."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

Instruction = tuple[CodeType, int]
"""A function's code and the index of an instruction in it."""


def instructions(ident: int, deepest: int) -> list[Instruction]:
    """Those of its frames, at most `deepest`, the innermost first; empty: the thread has ended.

    ident: threading.Thread.ident, of another thread than this one.

    A thread's frames are followed while it stands still: once it goes on, what follows is no
    stack that ever was, and on Python 3.11 perhaps memory that is in use for something else, which
    ends the process. Loops in Python hand the interpreter over, so C's follow them here:
    `list.extend`, which takes frame after frame from iterators that are written in C as well.
    """
    frame = map(operator.methodcaller("get", ident), _called(sys._current_frames))
    outwards = itertools.chain(frame, itertools.repeat("f_back", deepest - 1))
    frames = itertools.takewhile(
        functools.partial(operator.is_not, None), itertools.accumulate(outwards, getattr)
    )
    seen: list[Instruction] = []
    seen.extend(_uncollected(map(operator.attrgetter("f_code", "f_lasti"), frames)))
    return seen


def _called(function: Callable[[], Any]) -> Iterator[Any]:
    """Its result, once this is asked for it."""
    return itertools.starmap(function, [()])


def _uncollected(items: Iterator[Instruction]) -> Iterator[Instruction]:
    """The items, without garbage collection meanwhile.

    Python 3.11 makes an object of each frame that is asked for, may collect garbage to make it, and
    calls what gc.callbacks and finalizers hold: they hand the interpreter over.
    """
    if sys.version_info >= (3, 12):
        return items  # there it is never collected while C code runs
    enabled: list[bool] = []
    before = itertools.chain(map(enabled.append, _called(gc.isenabled)), _called(gc.disable))
    after = itertools.starmap(gc.enable, itertools.compress([()], enabled))
    return itertools.chain(filter(None, before), items, filter(None, after))
