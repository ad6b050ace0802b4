"""What is noted beside the data flow while its steps run: inputs, modules, what is computed again.

`flow` calls it for each operator and each call of a module; what it means is read from it
afterwards, by `flow_padding`, `flow_gradients` and `flow_recomputed`.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from flatout_agent.speedups import nests
from flatout_agent.watch import places
from flatout_agent.watch.profile.modes import without_modes
from flatout_agent.watch.tensors import readable

if TYPE_CHECKING:
    from flatout_agent.watch.profile.flow import FlowNode

CHECKPOINT = "/torch/utils/checkpoint.py"
ENGINE = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
"""From there a backward pass calls its nodes."""
MOST_LOOKS = 64
LEAST_LENGTH = 8
MOST_ELEMENTS = 1 << 22
"""Larger inputs are not looked at."""
DEEPEST = 6
MOST_MEMBERS = 4096
"""Of a nest, that are searched for tensors."""


@dataclass(frozen=True)
class InputLook:
    """One input of a model, batch x length, that ends (or begins) with the same number in all rows.

    Lengths are those of the rows without that number at the padded side.
    """

    path: str
    shape: tuple[int, int]
    left: bool
    constant: int
    lengths: tuple[int, ...]
    masked: bool
    """A mask of the same shape says so."""
    inside: bool
    """The number also stands among the others."""
    node: int
    """The operator that made it; below 0: not known."""


class FlowNotes:
    """Of the counted steps."""

    def __init__(self) -> None:
        self.recomputed: dict[int, int] = {}
        """Operators called again in a backward pass for a checkpoint, with the bytes they made."""
        self.checkpoints: dict[str, float] = {}
        """Line that calls a checkpoint -> seconds of the operators below it, in all steps."""
        self.looks: list[InputLook] = []
        self.whole: set[str] = set()
        """Inputs that were seen without padding, or not looked at."""
        self.training_calls = 0
        self.batches = 0
        """That loaders have given."""
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.roots: set[int] = set()
        """Of those the ones that the program calls itself."""
        self.after_trained: set[int] = set()
        """Of those the ones that were given something that needs a gradient."""
        self.recurrent: dict[int, tuple[int, ...]] = {}
        """Recurrent layers that were given whole batches, not packed ones, with the last shape."""

    def operator(self, index: int, node: FlowNode, results: Sequence[torch.Tensor]) -> None:
        """An operator that made or changed something is about to become number `index`."""
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
        """A module is called; root: by the program itself."""
        self.modules[id(module)] = weakref.ref(module)
        if root:
            self.roots.add(id(module))
        if isinstance(module, torch.nn.RNNBase) and args and type(args[0]) is torch.Tensor:
            self.recurrent[id(module)] = tuple(args[0].shape)
        if any(tensor.requires_grad for _, tensor in fields(args)):
            self.after_trained.add(id(module))

    def inputs(self, args: Any, kwargs: Any, makers: Any) -> None:
        """A model is about to be called in training. makers: tensor -> the operator that made it.

        What is computed here no dispatch mode sees.
        """
        self.training_calls += 1
        tensors = list(fields((args, kwargs)))
        with without_modes(), torch.no_grad():
            for path, tensor in tensors:
                if not _looked_at(tensor):
                    continue
                look = None
                if len(self.looks) < MOST_LOOKS and tensor.numel() <= MOST_ELEMENTS:
                    masks = [mask for _, mask in tensors if mask is not tensor]
                    look = _look(path, tensor, masks, makers(tensor))
                if look is None:
                    self.whole.add(path)
                else:
                    self.looks.append(look)


def _looked_at(tensor: torch.Tensor) -> bool:
    """Numbers of words: batch x length, of whole numbers."""
    if type(tensor) is not torch.Tensor or tensor.dim() != 2 or tensor.layout != torch.strided:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or not readable(tensor):
        return False
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return whole and tensor.shape[0] > 0 and tensor.shape[1] >= LEAST_LENGTH


def _look(
    path: str, tensor: torch.Tensor, masks: Sequence[torch.Tensor], node: int
) -> InputLook | None:
    """None: neither its end nor its begin is the same in all rows."""
    values = tensor.detach().cpu()
    looks = []
    for left in (False, True):
        turned = values.flip(1) if left else values
        constant = int(turned[0, -1])
        if bool((turned[:, -1] == constant).all()) and not bool((values == constant).all()):
            looks.append(_padded(path, turned, left, masks, node))
    return min(filter(None, looks), key=lambda look: max(look.lengths), default=None)


def _padded(
    path: str, values: torch.Tensor, left: bool, masks: Sequence[torch.Tensor], node: int
) -> InputLook | None:
    constant = int(values[0, -1])
    lengths = _lengths(values != constant)
    masked = False
    for mask in masks:
        if mask.shape == values.shape:
            mask = mask.detach().cpu()
            real = _real(mask.flip(1) if left else mask)
            if real is not None and bool((values[~real] == constant).all()):
                masked, lengths = True, _lengths(real)
    longest = int(lengths.max())
    if not masked and longest == values.shape[1]:
        return None
    positions = torch.arange(values.shape[1], device="cpu")
    before = positions < lengths.unsqueeze(1)
    return InputLook(
        path,
        (int(values.shape[0]), int(values.shape[1])),
        left,
        constant,
        tuple(lengths.tolist()),
        masked,
        bool(((values == constant) & before).any()),
        node,
    )


def _lengths(real: torch.Tensor) -> torch.Tensor:
    """Of each row: its last True, counted from 1; 0: none."""
    positions = torch.arange(1, real.shape[1] + 1, device="cpu")
    lengths: torch.Tensor = (real * positions).amax(dim=1)
    return lengths


def _real(mask: torch.Tensor) -> torch.Tensor | None:
    """Where a mask says that a word stands; None: it is no mask of padding at the end."""
    two = (mask == mask[0, 0]) | (mask == mask[0, -1])
    if not bool(two.all()) or not bool((mask[:, -1] == mask[0, -1]).all()):
        return None
    real = mask != mask[0, -1]
    ends = _lengths(real)
    whole = bool((ends == real.sum(dim=1)).all())  # words and then padding, nothing in between
    return real if whole and bool(real[:, 0].all()) else None


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
    """The user's line that calls the outermost checkpoint around here; None: there is none."""
    where = None
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(CHECKPOINT):
            outer = places.user_frame(frame)
            where = places.location(outer) if outer is not None else where
        frame = frame.f_back
    return where


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def fields(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch, each with how the program reaches it: [0], ["x"].

    What lies deep in a large nest is left out: it may hold all that a data set does.
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
