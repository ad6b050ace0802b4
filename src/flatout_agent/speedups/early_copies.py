"""Copies of a batch's tensors that start before the program asks for them.

Moves by the program (`tensor.to(device)`, `tensor.cuda()`) are observed in one batch, by the
tensor's position in it, and started early in the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from flatout_agent.attach.replacing import Replacement
from flatout_agent.boost import Undo
from flatout_agent.speedups import nests
from flatout_agent.speedups.side_stream import SideStream

if TYPE_CHECKING:
    import torch


class EarlyCopier(Protocol):
    """The way to start a copy to a device and to take it over."""

    def can_copy(self, tensor: torch.Tensor, device: torch.device) -> bool: ...
    def start(self, tensor: torch.Tensor, device: torch.device) -> Any: ...
    def finish(self, started: Any) -> Any: ...


class SideStreamCopies:
    """Copies from pinned memory, on a side stream for each CUDA device."""

    def __init__(self) -> None:
        self._streams: dict[Any, SideStream] = {}

    def can_copy(self, tensor: torch.Tensor, device: torch.device) -> bool:
        return device.type == "cuda" and bool(tensor.is_pinned())

    def start(self, tensor: torch.Tensor, device: torch.device) -> Any:
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = SideStream(device)
        plain = _plain("to")
        return side, *side.run(lambda: plain(tensor, device, non_blocking=True))

    def finish(self, started: Any) -> Any:
        side, copy, event = started
        copy.record_stream(side.join(event))
        return copy


class _Offer:
    """A tensor of a batch, its position, and the copy of it that was started."""

    def __init__(self, owner: Prefetch, place: int, tensor: torch.Tensor) -> None:
        self.owner, self.place = owner, place
        key = id(tensor)
        self.tensor = weakref.ref(tensor, lambda _: _offers.pop(key, None))
        self.version = tensor._version
        self.device: Any = None
        self.started: Any = None


_offers: dict[int, _Offer] = {}
"""The offers by the tensor's id; an entry is removed with its tensor."""


class Prefetch:
    """One loader's copies."""

    def __init__(self, copier: EarlyCopier, ahead: bool) -> None:
        self.copier, self.ahead = copier, ahead
        self.moved: dict[int, Any] = {}
        """A tensor's position in the batch -> device to which the program moves it."""
        self.used = 0
        self.refused = 0

    def layer(self, batches: Iterator[Any]) -> Iterator[Any]:
        return EarlyBatches(batches, self)

    def prepare(self, batch: Any) -> None:
        """Start the copies of this batch, and observe which of its tensors are moved."""
        import torch

        for place, tensor in enumerate(nests.tensors(batch)):
            if type(tensor) is not torch.Tensor or tensor.requires_grad:
                continue
            if tensor.device.type != "cpu":
                continue
            offer = _offers[id(tensor)] = _Offer(self, place, tensor)
            device = self.moved.get(place)
            if device is None:
                continue
            if self.copier.can_copy(tensor, device):
                offer.device, offer.started = device, self.copier.start(tensor, device)
            else:
                self.refused += 1

    def forget(self) -> None:
        self.moved.clear()
        for key in [key for key, offer in _offers.items() if offer.owner is self]:
            _offers.pop(key, None)

    def engagement(self) -> tuple[bool, str]:
        if self.used:
            return True, f"{self.used} copies started early"
        if self.refused:
            return False, "the batches are not in pinned memory"
        return False, "the program moved no tensor of a batch to the device"


class EarlyBatches:
    """A loader's iterator, with the copies of each batch started before it is handed out."""

    def __init__(self, batches: Iterator[Any], prefetch: Prefetch) -> None:
        self._batches, self._prefetch = batches, prefetch
        self._next: tuple[Any, Exception | None] | None = None

    def __iter__(self) -> EarlyBatches:
        return self

    def __next__(self) -> Any:
        batch, error = self._next or self._fetch()
        self._next = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and so the loader's workers
        if self._prefetch.ahead:
            self._next = self._fetch()
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # not yet there: an object being copied
            raise AttributeError(name)
        return getattr(self._batches, name)

    def _fetch(self) -> tuple[Any, Exception | None]:
        """The next batch, or its error, which is raised when the batch is requested."""
        try:
            batch = next(self._batches)
        except Exception as error:
            return None, error
        self._prefetch.prepare(batch)
        return batch, None


_catchers = 0
_catch: Replacement | None = None


def _plain(name: str) -> Any:
    import torch

    return getattr(torch._C.TensorBase, name)


def catch_moves() -> Undo:
    """Let `Tensor.to` and `Tensor.cuda` look for an offer first; all loaders share the patch."""
    import torch

    global _catchers, _catch
    if _catchers == 0:
        names = ("to", "cuda")
        _catch = Replacement(torch.Tensor, {name: _catching(name) for name in names})
        _catch.put()
    _catchers += 1

    def undo() -> None:
        global _catchers
        _catchers -= 1
        if _catchers == 0 and _catch is not None:
            _catch.back()

    return undo


def _catching(name: str) -> Any:
    plain = _plain(name)

    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        offer = _offers.get(id(self))
        if offer is None or offer.tensor() is not self:
            return plain(self, *args, **kwargs)
        ready = _take(offer, self, _device(name, args, kwargs))
        return plain(self if ready is None else ready, *args, **kwargs)

    move.__name__ = move.__qualname__ = name
    move.__doc__ = plain.__doc__
    return move


def _take(offer: _Offer, tensor: torch.Tensor, device: torch.device | None) -> Any:
    """The copy of the offered tensor on `device`, handed out once, or None if there is no valid
    one.
    """
    if device is None or device.type == "cpu":
        return None
    if tensor._version != offer.version:
        offer.owner.moved.pop(offer.place, None)
        return None
    offer.owner.moved[offer.place] = device
    started, offer.started = offer.started, None
    if started is None or offer.device != device:
        return None
    offer.owner.used += 1
    return offer.owner.copier.finish(started)


def _device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device named in a call of `to` or `cuda`, with its index, or None if there is none."""
    import torch

    named = kwargs.get("device", args[0] if args else None)
    if isinstance(named, torch.Tensor):
        named = named.device
    if named is None and name == "cuda":
        named = "cuda"
    if not isinstance(named, str | int | torch.device):
        return None
    device = torch.device(named)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
