"""Padding at the end of a model's inputs: how long the longest row is, and calls without the rest.

An input of words is a tensor of whole numbers [rows, length]. Columns at its end that hold one and
the same number in all rows are taken for padding. Whether the model's result depends on them cannot
be seen here: the Guard compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import forward_state, nests

if TYPE_CHECKING:
    import torch

SHORTEST = 16
"""Inputs of fewer columns are left alone."""
STEPS = 16
"""An input is cut to a multiple of this part of its length, so that few lengths occur: kernels and
allocators prepare each of them."""
LEAST_STEP = 8
MASK = "attention_mask"
"""How Hugging Face's models call a mask: its ones are no padding, whatever the words are."""
REFUSED = "the model cannot be called with shorter inputs"


@dataclass(frozen=True)
class Length:
    """A length of a model's inputs, and the shorter one that holds all that is not padding."""

    rows: int
    full: int
    cut: int


def lengths(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Length, ...]:
    """The lengths of these inputs that can be cut, such as one of the source and one of the target.

    A length is left out if it is not clear which dimensions of the inputs have it. Waits for an
    accelerator if the inputs are there.
    """
    import torch

    tensors = list(nests.tensors((args, kwargs)))
    words = [t for t in tensors if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)]
    if not words or any(type(tensor) is not torch.Tensor for tensor in tensors):
        return ()
    rows = len(words[0])
    masks = [value for name, value in kwargs.items() if name.endswith(MASK)]
    found = []
    for full in dict.fromkeys(tensor.shape[1] for tensor in words if len(tensor) == rows):
        if rows < 2 or full < SHORTEST or full == rows:
            continue
        if full in [value for value in (*args, *kwargs.values()) if isinstance(value, int)]:
            continue  # the program says how long it is
        if any(_dimensions(tensor, rows, full) is None for tensor in tensors):
            continue
        filled = torch.zeros(full, dtype=torch.bool, device=words[0].device)
        for tensor in tensors:
            if tensor.shape == (rows, full):
                is_mask = any(tensor is mask for mask in masks)
                used = tensor != 0 if is_mask else _differs(tensor)
                filled |= used.any(0).to(filled.device)
        longest = int((torch.arange(1, full + 1, device=filled.device) * filled).max())
        step = max(LEAST_STEP, full // STEPS)
        cut = max(1, -(-longest // step)) * step
        if cut < full:
            found.append(Length(rows, full, cut))
    return tuple(found)


def padded(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """The largest share of a length of these inputs that can be cut; 0 if none can be."""
    return max((1.0 - found.cut / found.full for found in lengths(args, kwargs)), default=0.0)


def _differs(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor [rows, length] differs from the number that ends its rows.

    All of it counts if its rows end with different numbers, none if all rows are the same: that
    is a range of positions, or a constant.
    """
    alike = (tensor == tensor[:1]).all()
    return (tensor != tensor[:1, -1:]) & ~alike


def _dimensions(tensor: torch.Tensor, rows: int, full: int) -> tuple[int, ...] | None:
    """The dimensions of an input that are this length, or None if that is not clear."""
    shape = tuple(tensor.shape)
    along = tuple(at for at, size in enumerate(shape) if size == full)
    if not along or (along == (1,) and shape[0] in (1, rows)):
        return along
    last = len(shape) - 1
    of_mask = (last - 1, last), (last,)
    if along in of_mask and shape[0] in (1, rows, full) and (last > 1 or shape[0] == full):
        return along
    return None


class WithoutPadding:
    """Calls a model with its inputs cut to the longest row, and its outputs padded again."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.calls = 0
        self.cut = 0
        """Calls that were made with less than the full length."""
        self.refused = ""
        """Why the model cannot be called with less."""
        self._proven: set[tuple[Length, ...]] = set()
        """Lengths with which calls have succeeded."""
        self._outputs: dict[tuple[int, ...], tuple[int, list[tuple[int, ...]]]] = {}
        """Full lengths -> rows, and the shape of each output there."""

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of `call` for these inputs."""
        import torch

        if self.refused or not (self.model.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        self.calls += 1
        found = lengths(args, kwargs)
        if not found:
            return call(*args, **kwargs)
        full = tuple(length.full for length in found)
        restore = None if found in self._proven else forward_state.keep([self.model])
        if restore is not None and full not in self._outputs:
            output = call(*args, **kwargs)
            shapes = [tuple(leaf.shape) for leaf in nests.tensors(output)]
            self._outputs[full] = found[0].rows, shapes
            del output
            restore()
        try:
            output = call(*_cut(args, found), **_cut(kwargs, found))
            result = self._padded(output, found[0].rows, full)
        except Exception as error:  # as written it may work; if not, it raises its own error
            self.refused = f"{REFUSED}: {(str(error) or repr(error)).splitlines()[0]}"
        else:
            self.cut += 1
            self._proven.add(found)
            return result
        if restore is not None:
            restore()
        return call(*args, **kwargs)

    def _padded(self, output: Any, now: int, full: tuple[int, ...]) -> Any:
        """The outputs with zeros where the full lengths would have more.

        now: the rows of this batch.
        """
        import torch

        rows, shapes = self._outputs[full]
        leaves = list(nests.tensors(output))
        if len(leaves) != len(shapes):
            raise ValueError("it gives another number of outputs")
        padded: dict[int, torch.Tensor] = {}
        for leaf, shape in zip(leaves, shapes, strict=True):
            sizes = [now, *shape[1:]] if shape and shape[0] == rows else list(shape)
            missing = [size - here for size, here in zip(sizes, leaf.shape, strict=True)]
            if any(more and size not in full for more, size in zip(missing, sizes, strict=True)):
                raise ValueError(f"an output {tuple(sizes)} became {tuple(leaf.shape)}")
            if any(missing):
                widths = [width for more in reversed(missing) for width in (0, more)]
                padded[id(leaf)] = torch.nn.functional.pad(leaf, widths)
        return nests.change(output, lambda leaf: padded.get(id(leaf), leaf))


def _cut(nest: Any, found: Sequence[Length]) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        shorter = tensor
        for length in found:
            for along in _dimensions(tensor, length.rows, length.full) or ():
                shorter = shorter.narrow(along, 0, length.cut)
        # The model may use .view().
        return tensor if shorter is tensor else shorter.contiguous()

    return nests.change(nest, cut)
