"""Records besides the data flow while its steps run: modules, recomputation.

A `Flow` calls it for each operator and each call of a module; `questions` interprets the records
afterwards.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from flatout_agent.speedups import nests
from flatout_agent.watch import places
from flatout_agent.watch.profile.flow.records import FlowNode

CHECKPOINT = "/torch/utils/checkpoint.py"
ENGINE = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
"""The files from which a backward pass calls its nodes."""
DEEPEST = 6
MOST_MEMBERS = 4096
"""The most members of a nest that are searched for tensors."""


class FlowNotes:
    """The records of the counted steps."""

    def __init__(self) -> None:
        self.recomputed: dict[int, int] = {}
        """Operators called again in a backward pass for a checkpoint, with the bytes they made."""
        self.checkpoints: dict[str, float] = {}
        """Line that calls a checkpoint -> seconds of the operators below it, in all steps."""
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.roots: set[int] = set()
        """The modules of these that the program calls itself."""
        self.after_trained: set[int] = set()
        """The modules of these that got an input that needs a gradient."""

    def operator(self, index: int, node: FlowNode, results: Sequence[torch.Tensor]) -> None:
        """An operator that made or changed something is about to get the number `index`."""
        if "torch.utils.checkpoint" not in sys.modules:
            return
        if node.backward:
            if _computed_again(sys._getframe(1)):
                sizes = (tensor.numel() * tensor.element_size() for tensor in results)
                self.recomputed[index] = sum(sizes) if node.made else 0
            return
        # The user's line that calls the outermost enclosing checkpoint, or None if there is none.
        frame: FrameType | None = sys._getframe(1)
        where = None
        while frame is not None:
            if frame.f_code.co_filename.replace("\\", "/").endswith(CHECKPOINT):
                outer = places.user_frame(frame)
                where = places.location(outer) if outer is not None else where
            frame = frame.f_back
        if where is not None:
            self.checkpoints[where] = self.checkpoints.get(where, 0.0) + node.s

    def called(self, module: torch.nn.Module, args: Any, root: bool) -> None:
        """A module is called. root: the program itself calls it."""
        self.modules[id(module)] = weakref.ref(module)
        if root:
            self.roots.add(id(module))
        if any(tensor.requires_grad for _, tensor in fields(args)):
            self.after_trained.add(id(module))


def _computed_again(frame: FrameType | None) -> bool:
    """Whether the operator is called by a checkpoint, not by a backward pass within one."""
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if file.endswith(CHECKPOINT):
            return True
        if file.endswith(ENGINE):
            return False
        frame = frame.f_back
    return False


def fields(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch, each with its access path: [0], ["x"].

    Members deep in a large nest are left out, as it may hold a whole data set.
    """
    if isinstance(batch, torch.Tensor):
        yield "", batch
    waiting = deque([("", batch, 1)])
    left = MOST_MEMBERS
    while waiting and left:
        path, nest, depth = waiting.popleft()
        if isinstance(nest, (list, tuple)):
            members: Iterable[tuple[Any, Any]] = enumerate(nest)
        else:
            members = nests.members(nest) or ()
        for name, member in itertools.islice(members, (left + 1) // 2):
            left -= 1
            step = f'["{name}"]' if isinstance(name, str) else f"[{name}]"
            if isinstance(member, torch.Tensor):
                yield path + step, member
            elif depth < DEEPEST:
                waiting.append((path + step, member, depth + 1))
