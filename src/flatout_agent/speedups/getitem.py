"""`tensor[key]`, as replaced by any number of speed-ups at once.

A name can be replaced once, so those that read by a key share this one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
        self._stand_ins = StandIns({torch.Tensor: {"__getitem__": self._replacement}})

    def hold(self, reader: Reader) -> None:
        """Ask this reader from now on; it may be held more than once."""
        self._readers = (*self._readers, reader)
        self._stand_ins.hold()

    def let_go(self, reader: Reader) -> None:
        """Take back one `hold` of this reader."""
        readers = list(self._readers)
        readers.remove(reader)
        self._readers = tuple(readers)
        self._stand_ins.let_go()

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


@functools.cache
def getitem() -> Getitem:
    """The instance of this process; kept, since torch's table refers to it by address."""
    return Getitem()
