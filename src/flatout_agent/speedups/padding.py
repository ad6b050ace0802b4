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
"""What Hugging Face's models call the mask: its ones are no padding, whatever the words are."""
REFUSED = "the model cannot be called with shorter inputs"


@dataclass(frozen=True)
class Length:
    """The length of a model's inputs, and the shorter one that holds all that is not padding."""

    rows: int
    full: int
    cut: int

    @property
    def padded(self) -> float:
        """Share of the length that is cut off."""
        return 1.0 - self.cut / self.full


def length(args: Sequence[Any], kwargs: dict[str, Any]) -> Length | None:
    """The length of these inputs, or None if it is not clear which dimension it is.

    Waits for an accelerator if the inputs are there.
    """
    import torch

    tensors = list(nests.tensors((args, kwargs)))
    words = [t for t in tensors if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)]
    if not words or any(type(tensor) is not torch.Tensor for tensor in tensors):
        return None
    rows, full = words[0].shape
    if rows < 2 or full < SHORTEST or rows == full:
        return None
    if full in [v for v in (*args, *kwargs.values()) if isinstance(v, int)]:
        return None  # the program says how long it is
    if any(_dimensions(tensor, rows, full) is None for tensor in tensors):
        return None
    mask = kwargs.get(MASK)
    filled = torch.zeros(full, dtype=torch.bool, device=words[0].device)
    for tensor in tensors:
        if tensor.shape == (rows, full):
            used = tensor != 0 if tensor is mask else _differs(tensor)
            filled |= used.any(0).to(filled.device)
    columns = torch.arange(1, full + 1, device=filled.device)
    longest = int((columns * filled).max())
    step = max(LEAST_STEP, full // STEPS)
    return Length(rows, full, min(full, max(1, -(-longest // step)) * step))


def _differs(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor [rows, length] differs from the number that ends its rows.

    All of it counts if its rows end with different numbers, none if all rows are the same: that
    is a range of positions, or a constant.
    """
    alike = (tensor == tensor[:1]).all()
    return (tensor != tensor[:1, -1:]) & ~alike


def _dimensions(tensor: torch.Tensor, rows: int, full: int) -> tuple[int, ...] | None:
    """The dimensions of an input that are its length, or None if that is not clear."""
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
        self._proven: set[tuple[int, int]] = set()
        """(full length, length) of calls that have succeeded."""
        self._outputs: dict[int, tuple[int, list[tuple[int, ...]]]] = {}
        """Full length -> rows, and the shape of each output there."""

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of `call` for these inputs."""
        import torch

        if self.refused or not (self.model.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        self.calls += 1
        found = length(args, kwargs)
        if found is None or found.cut >= found.full:
            return call(*args, **kwargs)
        size = found.full, found.cut
        restore = None if size in self._proven else forward_state.keep([self.model])
        if restore is not None and found.full not in self._outputs:
            output = call(*args, **kwargs)
            shapes = [tuple(leaf.shape) for leaf in nests.tensors(output)]
            self._outputs[found.full] = found.rows, shapes
            del output
            restore()
        try:
            output = call(*_cut(args, found), **_cut(kwargs, found))
            result = self._padded(output, found)
        except Exception as error:  # as written it may work; if not, it raises its own error
            self.refused = f"{REFUSED}: {(str(error) or repr(error)).splitlines()[0]}"
        else:
            self.cut += 1
            self._proven.add(size)
            return result
        if restore is not None:
            restore()
        return call(*args, **kwargs)

    def _padded(self, output: Any, found: Length) -> Any:
        """The outputs with zeros where the full length would have more."""
        import torch

        rows, shapes = self._outputs[found.full]
        leaves = list(nests.tensors(output))
        if len(leaves) != len(shapes):
            raise ValueError("it gives another number of outputs")
        padded: dict[int, torch.Tensor] = {}
        for leaf, (first, *others) in zip(leaves, (shape or (0,) for shape in shapes), strict=True):
            if not leaf.dim():
                continue
            sizes = [found.rows if first == rows else first, *others]
            missing = [size - here for size, here in zip(sizes, leaf.shape, strict=True)]
            if any(more and size != found.full for more, size in zip(missing, sizes, strict=True)):
                raise ValueError(f"an output {tuple(sizes)} became {tuple(leaf.shape)}")
            if any(missing):
                widths = [width for more in reversed(missing) for width in (0, more)]
                padded[id(leaf)] = torch.nn.functional.pad(leaf, widths)
        return nests.change(output, lambda leaf: padded.get(id(leaf), leaf))


def _cut(nest: Any, found: Length) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        for along in _dimensions(tensor, found.rows, found.full) or ():
            tensor = tensor.narrow(along, 0, found.cut)
        return tensor.contiguous()  # the model may use .view()

    return nests.change(nest, cut)
