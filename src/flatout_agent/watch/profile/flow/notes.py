"""Records besides the data flow while its steps run: inputs, modules, recomputation.

A `Flow` calls it for each operator and each call of a module; `questions` interprets the records
afterwards.
"""

from __future__ import annotations

import functools
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
from flatout_agent.watch.profile.flow.looks import MOST_ELEMENTS, InputLook, look, looked_at
from flatout_agent.watch.profile.flow.records import FlowNode
from flatout_agent.watch.profile.modes import without_modes

CHECKPOINT = "/torch/utils/checkpoint.py"
ENGINE = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
"""The files from which a backward pass calls its nodes."""
MOST_LOOKS = 64
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
        self.looks: list[InputLook] = []
        self.whole: set[tuple[str, int]] = set()
        """Inputs seen without padding, or not examined, with their dimensions."""
        self.collate: str | None = None
        """Where the user's function that makes the last loader's batches begins ..."""
        self.samples: str | None = None
        """... or, if torch's own makes them, the one that makes its samples."""
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.roots: set[int] = set()
        """The modules of these that the program calls itself."""
        self.after_trained: set[int] = set()
        """The modules of these that got an input that needs a gradient."""
        self.recurrent: dict[int, tuple[int, ...]] = {}
        """Recurrent layers that got whole batches, not packed ones, with the last shape."""

    def batch(self, loader: Any) -> None:
        """A loader has given a batch; None if the loader is unknown."""
        collate = getattr(loader, "collate_fn", None)
        self.collate = _function_line(collate)
        self.samples = None
        if self.collate is None and str(getattr(collate, "__module__", "")).startswith("torch."):
            data = type(getattr(loader, "dataset", None))
            self.samples = _function_line(getattr(data, "__getitem__", None))

    def operator(self, index: int, node: FlowNode, results: Sequence[torch.Tensor]) -> None:
        """An operator that made or changed something is about to get the number `index`."""
        if "torch.utils.checkpoint" not in sys.modules:
            return
        if node.backward:
            if _computed_again(sys._getframe(1)):
                self.recomputed[index] = sum(map(_bytes, results)) if node.made else 0
            return
        where = _checkpoint_line(sys._getframe(1))
        if where is not None:
            self.checkpoints[where] = self.checkpoints.get(where, 0.0) + node.s

    def called(self, module: torch.nn.Module, args: Any, root: bool) -> None:
        """A module is called. root: the program itself calls it."""
        self.modules[id(module)] = weakref.ref(module)
        if root:
            self.roots.add(id(module))
        if isinstance(module, torch.nn.RNNBase) and args and type(args[0]) is torch.Tensor:
            self.recurrent[id(module)] = tuple(args[0].shape)
        if any(tensor.requires_grad for _, tensor in fields(args)):
            self.after_trained.add(id(module))

    def inputs(self, args: Any, kwargs: Any, makers: Any) -> None:
        """A model is about to be called in training. makers: tensor -> the operator that made it.

        No dispatch mode sees the computations made here.
        """
        tensors = list(fields((args, kwargs)))
        with without_modes(), torch.no_grad():
            for path, tensor in tensors:
                if not looked_at(tensor):
                    continue
                padding = None
                if len(self.looks) < MOST_LOOKS and tensor.numel() <= MOST_ELEMENTS:
                    others = [other for _, other in tensors if other is not tensor]
                    padding = look(path, tensor, others, makers(tensor))
                if padding is None:
                    self.whole.add((path, tensor.dim()))
                else:
                    self.looks.append(padding)


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


def _checkpoint_line(frame: FrameType | None) -> str | None:
    """The user's line that calls the outermost enclosing checkpoint, or None if there is none."""
    where = None
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(CHECKPOINT):
            outer = places.user_frame(frame)
            where = places.location(outer) if outer is not None else where
        frame = frame.f_back
    return where


def _function_line(function: Any) -> str | None:
    """file:line where a function of the user's begins, or None if it is not the user's."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(type(function).__call__, "__code__", None)
    if code is None or places.package(code.co_filename):
        return None
    return f"{places.display(code.co_filename)}:{code.co_firstlineno}"


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
        for name, member in itertools.islice(_members(nest), (left + 1) // 2):
            left -= 1
            step = f'["{name}"]' if isinstance(name, str) else f"[{name}]"
            if isinstance(member, torch.Tensor):
                yield path + step, member
            elif depth < DEEPEST:
                waiting.append((path + step, member, depth + 1))


def _members(value: Any) -> Iterable[tuple[Any, Any]]:
    return enumerate(value) if isinstance(value, (list, tuple)) else nests.members(value) or ()
