"""How a batch is made of the ranks' parts of it: its containers, and what each of its leaves is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.speedups.samples import samples

MOST_SAME_BYTES = 2**16
"""What is the same in all parts is compared at each batch."""
PADDED = "its batches are as wide as their widest row"


class Uncut(Exception):  # noqa: N818 - a decision with its reason, not an error
    """A batch is not what the ranks' parts make of it."""


@dataclass(frozen=True)
class BatchForm:
    """What one part of a batch is."""

    how: str
    """rows: a tensor whose first dimension is the batch's; items: a list with an item for each row;
    same: alike in all parts; nest: a container of others."""
    holder: type | None = None
    keys: tuple[Any, ...] = ()
    """Of a dict."""
    children: tuple[BatchForm, ...] = ()

    def leaves(self, value: Any) -> Iterator[tuple[BatchForm, Any]]:
        """The leaves of a batch of this form. Raises Uncut where it has another one."""
        if self.how != "nest":
            yield self, value
            return
        if not _is_a(value, self.holder) or len(value) != len(self.children):
            raise Uncut("its batches are not all built alike")
        if self.keys and tuple(value) != self.keys:
            raise Uncut("its batches do not all have the same keys")
        for child, inner in zip(self.children, _inner(value), strict=True):
            yield from child.leaves(inner)

    def built(self, leaves: Iterator[Any]) -> Any:
        """A batch of this form from its leaves."""
        if self.how != "nest":
            return next(leaves)
        inner = [child.built(leaves) for child in self.children]
        return _made(self.holder, self.keys, inner)

    def part(self, batch: Any, begin: int, count: int) -> Any:
        """The rows from `begin` on, of a whole batch."""
        cut = (
            leaf if form.how == "same" else leaf[begin : begin + count]
            for form, leaf in self.leaves(batch)
        )
        return self.built(cut)

    def signature(self, part: Any, count: int) -> list[Any]:
        """What must be alike in all ranks' parts. Raises Uncut where this one does not fit."""
        return [_signature(form, leaf, count) for form, leaf in self.leaves(part)]


SAMPLES = BatchForm("samples")
"""Not collated: the samples of the rows, which every rank collates together."""


def form_of(whole: Any, parts: Sequence[Any], counts: Sequence[int]) -> BatchForm:
    """How `whole` is made of `parts`, whose rows are counted. Raises Uncut where it is not."""
    kinds = {type(value) for value in (whole, *parts)}
    if len(kinds) > 1:
        raise Uncut("a part of its rows gives another kind of batch")
    if type(whole) is torch.Tensor:
        return _of_tensor(whole, parts, counts)
    if not _is_container(whole):
        return _same(whole, parts)
    lengths = [len(part) for part in parts]
    if set(lengths) == {len(whole)}:
        keys = tuple(whole) if isinstance(whole, dict) else ()
        if any(tuple(part) != keys for part in parts if keys):
            raise Uncut("its batches do not all have the same keys")
        columns = zip(_inner(whole), *map(_inner, parts), strict=True)
        children = tuple(form_of(first, others, counts) for first, *others in columns)
        return BatchForm("nest", type(whole), keys, children)
    if type(whole) in (list, tuple) and len(whole) == sum(counts) and lengths == list(counts):
        if samples.same(list(whole), [item for part in parts for item in part]):
            return BatchForm("items", type(whole))
        raise Uncut("what it collates of one row depends on the others")
    raise Uncut("its batches have lists that are no lists of rows")


def _of_tensor(whole: torch.Tensor, parts: Sequence[Any], counts: Sequence[int]) -> BatchForm:
    for tensor in (whole, *parts):
        if (reason := _not_plain(tensor)) is not None:
            raise Uncut(reason)
    if not whole.ndim or whole.shape[0] != sum(counts):
        return _same(whole, parts)
    begin = 0
    for part, count in zip(parts, counts, strict=True):
        if part.ndim != whole.ndim or part.shape[0] != count or part.dtype != whole.dtype:
            return _same(whole, parts)
        if part.shape[1:] != whole.shape[1:]:
            raise Uncut(PADDED)
        if not samples.same(whole[begin : begin + count], part):
            raise Uncut("what it collates of one row depends on the others")
        begin += count
    return BatchForm("rows", torch.Tensor)


def _not_plain(tensor: torch.Tensor) -> str | None:
    if tensor.device.type != "cpu":
        return f"its batches are on {tensor.device} already"
    if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.is_contiguous():
        return "its batches have tensors of another layout"
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or vars(tensor):
        return "its batches have tensors with gradients or attributes of their own"
    return None


def _same(whole: Any, parts: Sequence[Any]) -> BatchForm:
    kind = type(whole)
    if kind is torch.Tensor:
        plain = whole.numel() * whole.element_size() <= MOST_SAME_BYTES
    else:
        plain = samples.is_unchanging(whole)
    if not plain:
        raise Uncut(f"its batches have a {kind.__name__}, which is not known here")
    if not all(samples.same(whole, part) for part in parts):
        raise Uncut("what it collates depends on the number of rows")
    return BatchForm("same", kind)


def _signature(form: BatchForm, leaf: Any, count: int) -> Any:
    if not _is_a(leaf, form.holder):
        raise Uncut("its batches are not all built alike")
    if form.how == "items":
        if len(leaf) != count:
            raise Uncut("a list of its rows has another length")
        return form.how
    if form.how == "same":
        return leaf.tolist() if isinstance(leaf, torch.Tensor) else repr(leaf)
    if (reason := _not_plain(leaf)) is not None:
        raise Uncut(reason)
    if not leaf.ndim or leaf.shape[0] != count:
        raise Uncut("a part of its rows has another number of them")
    return str(leaf.dtype), tuple(leaf.shape[1:])


def _is_a(value: Any, kind: Any) -> bool:
    return type(value) is kind


def _is_container(value: Any) -> bool:
    kind = type(value)
    if kind in (dict, OrderedDict, list, tuple):
        return True
    return isinstance(value, tuple) and hasattr(value, "_make") and not hasattr(value, "__dict__")


def _inner(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def _made(holder: Any, keys: tuple[Any, ...], inner: list[Any]) -> Any:
    if holder in (dict, OrderedDict):
        return holder(zip(keys, inner, strict=True))
    return holder._make(inner) if hasattr(holder, "_make") else holder(inner)
