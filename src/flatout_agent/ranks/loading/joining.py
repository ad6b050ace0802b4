"""Each rank's part of a batch becomes the whole batch in all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.loading.forms import SAMPLES, BatchForm, Uncut
from flatout_agent.ranks.loading.packing import packed, unpacked

PACKED_BYTES = 2**16
"""Smaller tensors of a part are sent in one message together."""
FITS, MISFIT, UNREAD = 0, 1, 2
"""What a rank says of its part; the worst counts."""


class BatchPart(NamedTuple):
    """A part of a batch as it can be sent; `failed`: why it cannot."""

    leaves: list[tuple[BatchForm, Any]]
    items: torch.Tensor | None
    """Lists of the rows, as bytes."""
    signature: int
    failed: str = ""
    state: int = FITS


def unread(reason: str) -> BatchPart:
    """What a rank without a part says."""
    return BatchPart([], None, 0, reason, UNREAD)


def part_of(form: BatchForm, data: Any, count: int) -> BatchPart:
    """The part that holds `count` rows in `data`."""
    if form == SAMPLES:
        return BatchPart([], data, hashed(form))
    try:
        signature = form.signature(data, count)
        leaves = list(form.leaves(data))
        lists = [list(leaf) for kind, leaf in leaves if kind.how == "items"]
        return BatchPart(leaves, packed(lists) if lists else None, hashed((signature, form)))
    except Uncut as reason:
        return BatchPart([], None, 0, str(reason), MISFIT)
    except Exception as error:  # of an object of the program's
        why = f"its rows cannot be sent: {type(error).__name__}: {error}"
        return BatchPart([], None, 0, why[:300], MISFIT)


def hashed(value: Any) -> int:
    """The same number for what is written alike."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:7], "big")


class Met(NamedTuple):
    """What all ranks have said of one batch."""

    same_indices: bool
    state: int
    """FITS: all ranks have a part, and the parts go together."""
    random: bool
    """Any rank has drawn random numbers for its rows."""
    lengths: list[int]
    """Bytes of each rank's items."""


def met(group: RankGroup, indices: Any, part: BatchPart, random: bool) -> Met:
    """One small message between the ranks, before anything else is sent."""
    where, kind = _of_indices(indices), part.signature
    lengths = [0] * group.size
    lengths[group.rank] = 0 if part.items is None else part.items.numel()
    said = [where, -where, kind, -kind, part.state, random, *lengths]
    most, least, high, low, state, drawn, *lengths = group.max_(torch.tensor(said)).tolist()
    state = max(state, FITS if high == -low else MISFIT)
    return Met(most == -least, state, bool(drawn), lengths)


def _of_indices(indices: Any) -> int:
    """A number for the rows that a sampler has chosen; of objects only their kind counts."""
    if all(type(index) is int for index in indices):
        return hashed(indices)
    return hashed([_written(index) for index in indices])


def _written(index: Any) -> Any:
    if isinstance(index, tuple | list):
        return [_written(each) for each in index]
    known = isinstance(index, str) or hasattr(index, "__index__")
    return str(index) if known else type(index)


def whole_of(
    group: RankGroup,
    form: BatchForm,
    part: BatchPart,
    counts: Sequence[int],
    lengths: Sequence[int],
) -> Any:
    """The whole batch, or all samples; all ranks call it with parts that go together."""
    tensors = [leaf for kind, leaf in part.leaves if kind.how == "rows"]
    wholes = iter(_tensors(group, tensors, counts))
    lists = iter(_lists(group, part, counts, lengths))
    if form == SAMPLES:
        return next(lists)
    leaves = []
    for kind, leaf in part.leaves:
        if kind.how == "rows":
            leaves.append(next(wholes))
        elif kind.how == "items" and kind.holder is not None:
            leaves.append(kind.holder(next(lists)))
        else:
            leaves.append(leaf)
    return form.built(iter(leaves))


def _tensors(
    group: RankGroup, tensors: list[torch.Tensor], counts: Sequence[int]
) -> list[torch.Tensor]:
    # Judged by what a row takes: alike in all ranks.
    most = PACKED_BYTES // max(counts)
    small = [tensor for tensor in tensors if _row_bytes(tensor) <= most]
    if len(small) < 2 or group.alone:
        return [group.joined(tensor, 0, counts) for tensor in tensors]
    together = iter(_in_one_message(group, small, counts))
    return [
        next(together) if _row_bytes(tensor) <= most else group.joined(tensor, 0, counts)
        for tensor in tensors
    ]


def _in_one_message(
    group: RankGroup, tensors: list[torch.Tensor], counts: Sequence[int]
) -> list[torch.Tensor]:
    widths = [_row_bytes(tensor) for tensor in tensors]
    own = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    together = group.joined(own, 0, [count * sum(widths) for count in counts])
    of_ranks = torch.split(together, [count * width for count in counts for width in widths])
    wholes = []
    for place, tensor in enumerate(tensors):
        parts = [of_ranks[rank * len(tensors) + place] for rank in range(len(counts))]
        whole = torch.cat(parts).view(tensor.dtype)
        wholes.append(whole.view(sum(counts), *tensor.shape[1:]))
    return wholes


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.shape[1:].numel() * tensor.element_size()


def _lists(
    group: RankGroup, part: BatchPart, counts: Sequence[int], lengths: Sequence[int]
) -> list[list[Any]]:
    """The lists of all ranks' rows, one after the other."""
    if part.items is None:
        return []
    if group.alone:
        own: list[list[Any]] = unpacked(part.items)
        return [[rows[at % len(rows)] for at in range(sum(counts))] for rows in own]
    together = torch.split(group.joined(part.items, 0, lengths), list(lengths))
    of_ranks = [unpacked(each) for each in together]
    return [[row for rows in lists for row in rows] for lists in zip(*of_ranks, strict=True)]
