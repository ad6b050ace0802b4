"""Examines the inputs of a model in the counted steps for padding at the end.

It examines token numbers, batch x length, and frames of features, batch x length x ... (or with the
length last). The model's other inputs may give the length of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flatout_agent.watch.tensors import readable

LEAST_LENGTH = 8
MOST_ELEMENTS = 1 << 22
"""Larger inputs are not examined."""
ALIKE = 0.75
"""The least share of rows whose length is as given: the last tokens of the others may equal the
padding."""


@dataclass(frozen=True)
class InputLook:
    """One input of a model that ends (or begins) with the same number in all rows.

    Lengths are those of the rows without that number at the padded side.
    """

    path: str
    size: tuple[int, ...]
    """Its whole shape."""
    along: int
    """The length dimension; the first one is the batch."""
    left: bool
    constant: int
    lengths: tuple[int, ...]
    words: bool
    """Whether it consists of whole numbers with only rows and length."""
    masked: bool
    """Whether a mask of rows and length, or lengths, among the model's inputs confirm it."""
    inside: bool
    """Whether the padding number also occurs elsewhere."""
    node: int
    """The operator that made it, or negative if unknown."""

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and the length."""
        return self.size[0], self.size[self.along]

    @property
    def padded(self) -> float:
        """The share of the length beyond the longest row."""
        return 1 - max(self.lengths) / self.shape[1]


def looked_at(tensor: torch.Tensor) -> bool:
    """Whether it may be a batch of tokens or frames: numbers of a relevant length."""
    if not _plain(tensor) or tensor.dim() < 2 or not tensor.shape[0]:
        return False
    numbers = not (tensor.is_complex() or tensor.dtype == torch.bool or tensor.is_quantized)
    wide = not tensor.is_floating_point() or tensor.element_size() > 1
    return numbers and wide and max(tensor.shape[1], tensor.shape[-1]) >= LEAST_LENGTH


def look(
    path: str, tensor: torch.Tensor, others: Sequence[torch.Tensor], node: int
) -> InputLook | None:
    """A look at this input, or None if neither its end nor its beginning is the same in all rows,
    or that may well be data.
    """
    looks = []
    words = tensor.dim() == 2 and not tensor.is_floating_point()
    for along in dict.fromkeys((1, tensor.dim() - 1)):
        for left in (False, True) if tensor.shape[along] >= LEAST_LENGTH else ():
            padding = _present(tensor.detach(), along, left)
            if padding is None:
                continue
            constant, present = padding
            lengths, masked = _lengths_of(present, others, left)
            sequences = along == 1 and (words or tensor.dim() > 2)
            if masked or (sequences and int(lengths.max()) < present.shape[1]):
                before = torch.arange(present.shape[1], device="cpu") < lengths.unsqueeze(1)
                inside = bool((~present & before).any())
                values = tuple(int(length) for length in lengths)
                size = tuple(map(int, tensor.shape))
                looks.append(
                    InputLook(
                        path, size, along, left, constant, values, words, masked, inside, node
                    )
                )
    return max(looks, key=lambda look: (look.masked, look.padded), default=None)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its values can be examined."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and readable(tensor)
    )


def _present(tensor: torch.Tensor, along: int, left: bool) -> tuple[int, torch.Tensor] | None:
    """The number at its padded side, and where others are: rows x length, with the padding last.

    None if that side is not the same whole number everywhere, or if there is nothing else.
    """
    end = tensor.select(along, 0 if left else -1)
    if not end.numel():
        return None
    constant = end.flatten()[0]
    number = float(constant)
    if not number.is_integer() or not bool((end == constant).all()):
        return None
    present = tensor != constant
    if present.dim() > 2:
        present = present.movedim(along, 1).flatten(2).any(2)
    present = (present.flip(1) if left else present).cpu()
    return (int(number), present) if bool(present.any()) else None


def _lengths_of(
    present: torch.Tensor, others: Sequence[torch.Tensor], left: bool
) -> tuple[torch.Tensor, bool]:
    """The lengths of the rows, and whether a mask or lengths among the other inputs
    confirm them.
    """
    lengths = _lengths(present)
    for other in others:
        if not _plain(other) or not other.dim() or other.shape[0] != present.shape[0]:
            continue
        given = None
        if other.numel() == present.numel() and other.dim() > 1:
            mask = other.detach().reshape(present.shape).cpu()
            real = _real(mask.flip(1) if left else mask)
            if real is not None and not bool(present[~real].any()):
                given = _lengths(real)
        elif other.numel() == present.shape[0] and other.dtype != torch.bool:
            given = _as_given(other.detach().flatten().cpu(), lengths, present.shape[1])
        if given is not None:
            return given, True
    return lengths, False


def _as_given(given: torch.Tensor, lengths: torch.Tensor, length: int) -> torch.Tensor | None:
    """The row lengths that this input gives, or None if it is something else."""
    fits = bool((given >= lengths).all()) and bool((given <= length).all())
    same = float((given == lengths).float().mean())
    return given.long() if fits and same >= ALIKE else None


def _lengths(real: torch.Tensor) -> torch.Tensor:
    """The position of each row's last True, counted from 1, or 0 if it has none."""
    positions = torch.arange(1, real.shape[1] + 1, device="cpu")
    lengths: torch.Tensor = (real * positions).amax(dim=1)
    return lengths


def _real(mask: torch.Tensor) -> torch.Tensor | None:
    """The positions where a mask marks tokens, or None if it is no mask of padding at the end."""
    two = (mask == mask[0, 0]) | (mask == mask[0, -1])
    if not bool(two.all()) or not bool((mask[:, -1] == mask[0, -1]).all()):
        return None
    real = mask != mask[0, -1]
    ends = _lengths(real)
    whole = bool((ends == real.sum(dim=1)).all())  # tokens and then padding, not interleaved
    return real if whole and bool(real[:, 0].all()) else None
