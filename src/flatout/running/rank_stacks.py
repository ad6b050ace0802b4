"""What the stacks of a rank tell: whether it waits for the others, and where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

EXCHANGE = "flatout_agent/ranks/"
"""In the paths of the files in which a rank waits for the others."""
HEADER = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
LIBRARIES = re.compile(r"/(?:site-packages|dist-packages|flatout_agent)/|/lib/python\d|^<")
COLLECTIVES = "/torch/distributed/"
DDP = "/torch/nn/parallel/distributed.py"
"""Where it makes buffers rank 0's, before a forward pass."""
BACKWARD = "/torch/autograd/graph.py"
"""Where DistributedDataParallel exchanges gradients: torch's C++ shows no frames of its own."""
WAITS = (COLLECTIVES, DDP, BACKWARD)


def waits_for_others(text: str, native: bool = False) -> bool:
    """Whether a thread is in the exchange between ranks, and not in what that calls.

    native: the program exchanges by itself, through torch's own group.
    """
    for frames in _threads(text):
        if native and frames and any(place in frames[0][0] for place in WAITS):
            return True
        inner = next((path for path, _ in frames if COLLECTIVES not in path), "")
        if EXCHANGE in inner:
            return True
    return False


def place(text: str) -> str | None:
    """train.py:88, the innermost line of the user's own code; None: there is none.

    text: stacks as faulthandler writes them, the innermost frame first.
    """
    threads = list(_threads(text))
    for frames in reversed(threads):  # the thread that got the signal is told last
        for path, line in frames:
            if not LIBRARIES.search(path):
                return f"{PurePath(path).name}:{line}"
    return None


def place_of_error(traceback: str) -> str | None:
    """The same of a traceback as Python prints it, the innermost frame last."""
    frames = [(path.replace("\\", "/"), line) for path, line in FRAME.findall(traceback)]
    own = [(path, line) for path, line in frames if not LIBRARIES.search(path)]
    return f"{PurePath(own[-1][0]).name}:{own[-1][1]}" if own else None


def _threads(text: str) -> Iterator[list[tuple[str, str]]]:
    """(path, line) of each thread's frames."""
    for part in HEADER.split(text)[1:]:
        yield [(path.replace("\\", "/"), line) for path, line in FRAME.findall(part)]
