"""`tensor[key]`, as replaced by any number of speed-ups at once.

A name can be replaced once, so those that read by a key share this one.

A class whose `__getitem__` is set in Python is one of sequences for CPython, also when it has got
its own back: its slot `sq_item` is filled. Tensors are none, and `torch.tensor([a, b])` of tensors
without dimensions ("len() of a 0-d tensor") fails if they are. So the slot is emptied again.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

from flatout_agent.speedups.stand_in import StandIns

Reader = Callable[[Callable[..., Any], Any, Any], Any]
"""Takes torch's own function, a tensor and a key; returns what is read, or None where another shall
read it."""


class Getitem:
    """Asks each reader in turn, then torch's own function."""

    def __init__(self) -> None:
        import torch

        self._readers: tuple[Reader, ...] = ()
        makers = {"__getitem__": self._replacement} if _slots_can_be_emptied() else {}
        self._stand_ins = StandIns({torch.Tensor: makers})

    def hold(self, reader: Reader) -> None:
        """Ask this reader from now on; it may be held more than once."""
        self._readers = (*self._readers, reader)
        self._stand_ins.hold()
        _empty_slots()

    def let_go(self, reader: Reader) -> None:
        """Take back one `hold` of this reader."""
        readers = list(self._readers)
        readers.remove(reader)
        self._readers = tuple(readers)
        self._stand_ins.let_go()
        _empty_slots()

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        has_torch_function = torch.overrides.has_torch_function

        def getitem(input: Any, key: Any) -> Any:
            if has_torch_function((input, key)):  # it is asked with torch's own function
                return torch.overrides.handle_torch_function(original, (input, key), input, key)
            for reader in self._readers:
                found = reader(original, input, key)
                if found is not None:
                    return found
            return original(input, key)

        return getitem


WORD = ctypes.sizeof(ctypes.c_void_p)
AS_SEQUENCE, ITEM = 13 * WORD, 3 * WORD
"""Where CPython keeps `tp_as_sequence` in a class (PyTypeObject), and `sq_item` in that (object.h,
the same in 3.8 to 3.14)."""


def _slot(kind: type) -> ctypes.c_void_p:
    table = ctypes.c_void_p.from_address(id(kind) + AS_SEQUENCE).value or 0
    return ctypes.c_void_p.from_address(table + ITEM)


@functools.cache
def _slots_can_be_emptied() -> bool:
    """Tried on classes of our own first: another Python may keep them elsewhere."""
    other_layout = sysconfig.get_config_var("Py_GIL_DISABLED") or hasattr(sys, "getobjects")
    if sys.implementation.name != "cpython" or other_layout:
        return False

    class Plain:
        pass

    class Items:
        def __getitem__(self, key: Any) -> Any:
            return key

    is_sequence = ctypes.pythonapi["PySequence_Check"]  # ours alone, unlike the attribute
    is_sequence.argtypes = [ctypes.py_object]
    if _slot(Plain).value or not _slot(Items).value or not is_sequence(Items()):
        return False
    _slot(Items).value = None
    return not is_sequence(Items()) and bool(Items()[2] == 2)


def _empty_slots() -> None:
    """For tensors of all classes that read by torch's own function, as before."""
    import torch

    if _slots_can_be_emptied():
        for kind in _reading_as(torch.Tensor):
            _slot(kind).value = None


def _reading_as(kind: Any) -> Iterator[type]:
    yield kind
    for derived in type.__subclasses__(kind):
        if derived.__getitem__ is kind.__getitem__:
            yield from _reading_as(derived)


@functools.cache
def getitem() -> Getitem:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Getitem()
