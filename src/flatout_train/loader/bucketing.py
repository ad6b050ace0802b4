"""Batches of samples of similar length, and the collate that pads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from flatout_train.errors import UsageError
from flatout_train.loader.seeding import seeded

STEPS_SORTED_TOGETHER = 50
"""Steps sorted by length together: more waste less on padding, fewer keep batches more random."""
LABELS = frozenset({"labels", "label_ids", "target", "targets"})
IGNORED = -100
"""The target that torch's cross entropy ignores."""


def order(
    lengths: Tensor, group: int, generator: torch.Generator, shuffle: bool, drop_last: bool
) -> Tensor:
    """The samples 0 ... n - 1, ordered such that each `group` has similar lengths; int64 [n].

    Shuffled: a random order is cut into pieces of 50 groups, each piece is sorted by length and cut
    into groups, and the groups are shuffled. Where n is not a multiple of `group`, the remainder
    comes last: a random one with `drop_last`, which drops it, else also of similar length. Not
    shuffled: the longest first, so that a batch that does not fit in memory shows at once.
    """
    samples = len(lengths)
    if not shuffle:
        return torch.argsort(lengths, descending=True, stable=True)
    chosen = torch.randperm(samples, generator=generator)
    rest = samples % group
    dropped = chosen[samples - rest :] if drop_last else chosen[:0]
    chosen = chosen[: samples - len(dropped)]
    pieces = [
        _sorted(piece, lengths) for piece in torch.split(chosen, STEPS_SORTED_TOGETHER * group)
    ]
    if rest and not drop_last:  # the short group may lie anywhere in its piece
        before = group * int(torch.randint(len(pieces[-1]) // group + 1, (), generator=generator))
        last = pieces[-1]
        dropped, pieces[-1] = (
            last[before : before + rest],
            torch.cat([last[:before], last[before + rest :]]),
        )
    groups = torch.cat(pieces).view(samples // group, group)
    groups = groups[torch.randperm(len(groups), generator=generator)]
    return torch.cat([groups.flatten(), dropped])


def _sorted(piece: Tensor, lengths: Tensor) -> Tensor:
    return piece[torch.argsort(lengths[piece], stable=True)]


def padding_share(lengths: Tensor, ordered: Tensor, batch_size: int) -> float:
    """The fraction of elements that is padding when `ordered` is cut into batches, 0 to 1."""
    sizes = lengths[ordered]
    full = len(sizes) // batch_size * batch_size
    padded = int(sizes[:full].view(-1, batch_size).amax(1).sum()) * batch_size if full else 0
    if full < len(sizes):
        padded += int(sizes[full:].max()) * (len(sizes) - full)
    return 1 - int(sizes.sum()) / padded if padded else 0.0


def measured(
    dataset: Any, samples: int, lengths: Sequence[int] | Tensor | Callable[[Any], int]
) -> Tensor:
    """Each sample's length, int64 [samples]: as passed, or by reading every sample once.

    Raises UsageError where there are too few or too many, or one is no whole number from 0.
    """
    if callable(lengths):
        with seeded(0):
            values = [lengths(dataset[index]) for index in range(samples)]
    else:
        values = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if len(values) != samples:
        raise UsageError(
            f"lengths has {len(values)} entries for {samples} samples: pass one per sample"
        )
    try:
        sizes = torch.tensor([int(length) for length in values], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"lengths must be whole numbers: {error}") from error
    if samples and int(sizes.min()) < 0:
        index = int(sizes.argmin())
        raise UsageError(f"lengths[{index}] is {int(sizes[index])}: lengths must be 0 or more")
    return sizes


@dataclasses.dataclass(frozen=True)
class Pad:
    """Collate that pads 1-d samples of different length at the end, to the longest in the batch.

    A sample is a 1-d tensor, array or list of numbers, or a dict, tuple or NamedTuple of these and
    of what torch's `default_collate` accepts. `[length]` becomes `[batch, longest]`, padded with
    `value`, or with `ignored` for targets: under a dict's key `labels`, `label_ids`, `target` or
    `targets`, or the second of a pair. `attention_mask` (int64, 1 where there is a token) is added
    to dicts with `input_ids` but no mask.
    """

    value: float = 0
    ignored: int = IGNORED

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, Mapping):
            return self._mapping(samples)
        if isinstance(first, tuple):
            fields = list(zip(*samples, strict=True))
            columns = [
                self._column(field, self.ignored if number == 1 and len(fields) == 2 else None)
                for number, field in enumerate(fields)
            ]
            return first._make(columns) if hasattr(first, "_make") else columns
        return self._column(samples)

    def _mapping(self, samples: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
        batch = {}
        for key in samples[0]:
            fill = self.ignored if key in LABELS else 0 if key == "attention_mask" else None
            batch[key] = self._column([sample[key] for sample in samples], fill)
        if "input_ids" in batch and "attention_mask" not in batch:
            counts = torch.tensor([len(sample["input_ids"]) for sample in samples])
            longest = torch.arange(batch["input_ids"].shape[1])
            batch["attention_mask"] = (longest < counts[:, None]).long()
        return batch

    def _column(self, values: Sequence[Any], fill: float | None = None) -> Any:
        if not all(_is_sequence(value) for value in values):
            return default_collate(list(values))
        rows = [torch.as_tensor(value) for value in values]
        value = self.value if fill is None else fill
        return pad_sequence(rows, batch_first=True, padding_value=value)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(element, int | float) for element in value)
    return getattr(value, "ndim", None) == 1 and hasattr(value, "dtype")
