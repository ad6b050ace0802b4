"""The instructions that a thread of this process executes, from its innermost frame outwards."""

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
    """The instructions of a thread's frames, at most `deepest`, innermost first; empty if it has
    ended.

    ident: threading.Thread.ident, of another thread than this one.

    A thread's frames may be followed only while it stands still. Once it goes on, the rest is no
    stack that ever existed, and on Python 3.11 perhaps memory reused for something else, which ends
    the process. Loops in Python hand the interpreter over, so C code does the loop here:
    `list.extend` takes frame after frame from iterators that are also written in C.
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
    """An iterator that gives a call's result when asked for it."""
    return itertools.starmap(function, [()])


def _uncollected(items: Iterator[Instruction]) -> Iterator[Instruction]:
    """The items, collected without garbage collection.

    Python 3.11 makes an object for each requested frame, may collect garbage to make it, and calls
    gc.callbacks and finalizers, which hand the interpreter over.
    """
    if sys.version_info >= (3, 12):
        return items  # there it is never collected while C code runs
    enabled: list[bool] = []
    before = itertools.chain(map(enabled.append, _called(gc.isenabled)), _called(gc.disable))
    after = itertools.starmap(gc.enable, itertools.compress([()], enabled))
    return itertools.chain(filter(None, before), items, filter(None, after))
