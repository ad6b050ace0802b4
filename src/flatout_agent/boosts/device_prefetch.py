"""Copy the next batch to the GPU while the GPU still computes.

## What it does
Learns from the first batches which of a loader's tensors the program moves to a CUDA device. From
then on it starts those copies by itself, on a stream of their own, as soon as the loader hands the
batch out; with loader workers, one batch ahead. When the program calls `.to(device)` or `.cuda()`
on that tensor, it gets the copy that is already under way.

## Why it is faster
An ordinary `.to(device)` waits until the device has done all the work before it, and only then
copies: neither the copy nor the launching of the next step overlaps with computing. A copy from
pinned memory on a side stream does.

## When it does nothing
Without CUDA; for batches that are not in pinned memory (see loader-pin-memory); for tensors that
the program converts or changes before it moves them, that require gradients, or that are of a
subclass; where the loader's batches are on the device already.

## What it may change
No number. Batches stay on the CPU until the program moves them, and the program still gets a new
tensor for each move. Memory for one more batch is in use on the device. With loader workers each
batch is fetched one request earlier; an error in fetching it is raised when it is asked for. A
batch that the program writes to through a NumPy view before it moves it is copied as it came from
the loader: tensors count their own changes, not those of a view.

## How it is undone
`Tensor.to` and `Tensor.cuda` are torch's own again; a copy that was started is dropped.

## References
- https://pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
- https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk, Switch, Undo
from flatout_agent.replacing import Replacement
from flatout_agent.speedups import nests

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.LOADER,
    switch=Switch.ITERATOR,
    retry_after=("loader-workers", "loader-pin-memory"),
)


def applies(facts: JobFacts, params: Params) -> str | None:
    """Copies to a device exist only where there is one."""
    if facts.device != "cuda":
        return f"the model is on {facts.device}: batches are not copied to a CUDA device"
    if not facts.loaders:
        return "no DataLoader was seen"
    if all(loader.batch_on_device for loader in facts.loaders):
        return "the batches come out on the device already"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """The share of the step that copies take is not known beforehand."""
    return 1.08


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Watch this loader's batches and start their copies early."""
    if not job.torch.cuda.is_available():
        raise Declined("there is no CUDA device")
    prefetch = Prefetch(job.torch, SideStream(job.torch), ahead=target.num_workers > 0)
    undo_layer = job.wrap_batches(target, prefetch.layer)
    undo_moves = _catch_moves(job.torch)

    def undo() -> None:
        undo_layer()
        undo_moves()
        prefetch.forget()

    return Applied(undo, prefetch.told)


def by_hand(facts: JobFacts, params: Params) -> str:
    """What most programs can write themselves: pinned memory and copies that do not wait."""
    return "\n".join(
        [
            "# in DataLoader(...): pin_memory=True",
            "# in the loop, for each tensor of the batch:",
            'x = x.to("cuda", non_blocking=True)',
        ]
    )


class Copier(Protocol):
    """How a copy to a device is started and taken over."""

    def can_copy(self, tensor: Any, device: Any) -> bool: ...
    def start(self, tensor: Any, device: Any) -> Any: ...
    def finish(self, started: Any) -> Any: ...


class SideStream:
    """Copies from pinned memory on a CUDA stream of their own."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._streams: dict[Any, Any] = {}

    def can_copy(self, tensor: Any, device: Any) -> bool:
        return device.type == "cuda" and bool(tensor.is_pinned())

    def start(self, tensor: Any, device: Any) -> Any:
        cuda = self._torch.cuda
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)
        with cuda.stream(stream):
            copy = _plain(self._torch, "to")(tensor, device, non_blocking=True)
            return copy, stream.record_event()

    def finish(self, started: Any) -> Any:
        copy, event = started
        stream = self._torch.cuda.current_stream(copy.device)
        stream.wait_event(event)
        copy.record_stream(stream)  # its memory belongs to the side stream
        return copy


class _Offer:
    """A tensor of a batch: at which place it stood, and the copy that was started of it."""

    def __init__(self, owner: Prefetch, place: int, tensor: Any) -> None:
        self.owner, self.place = owner, place
        key = id(tensor)
        self.tensor = weakref.ref(tensor, lambda _: _offers.pop(key, None))
        self.version = tensor._version
        self.device: Any = None
        self.started: Any = None


_offers: dict[int, _Offer] = {}
"""By the tensor's id; an entry goes when its tensor goes."""


class Prefetch:
    """One loader's copies."""

    def __init__(self, torch: Any, copier: Copier, ahead: bool) -> None:
        self.torch, self.copier, self.ahead = torch, copier, ahead
        self.moved: dict[int, Any] = {}
        """Place of a tensor in the batch -> device to which the program moves it."""
        self.used = 0
        self.refused = 0

    def layer(self, batches: Iterator[Any]) -> Iterator[Any]:
        return Ahead(batches, self)

    def prepare(self, batch: Any) -> None:
        """Start the copies of this batch, and see which of its tensors are moved."""
        for place, tensor in enumerate(nests.tensors(batch)):
            if type(tensor) is not self.torch.Tensor or tensor.requires_grad:
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

    def told(self) -> tuple[bool, str]:
        if self.used:
            return True, f"{self.used} copies started early"
        if self.refused:
            return False, "the batches are not in pinned memory"
        return False, "the program moved no tensor of a batch to the device"


class Ahead:
    """A loader's iterator, with the copies of each batch started before it is handed out."""

    def __init__(self, batches: Iterator[Any], prefetch: Prefetch) -> None:
        self._batches, self._prefetch = batches, prefetch
        self._next: tuple[Any, Exception | None] | None = None

    def __iter__(self) -> Ahead:
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
        """The next batch, or what fetching it raised: that is for the one who asks for it."""
        try:
            batch = next(self._batches)
        except Exception as error:
            return None, error
        self._prefetch.prepare(batch)
        return batch, None


_catchers = 0
_catch: Replacement | None = None


def _plain(torch: Any, name: str) -> Any:
    return getattr(torch._C.TensorBase, name)


def _catch_moves(torch: Any) -> Undo:
    """Let `Tensor.to` and `Tensor.cuda` look for an offer first; loaders share the one catch."""
    global _catchers, _catch
    if _catchers == 0:
        names = ("to", "cuda")
        _catch = Replacement(torch.Tensor, {name: _catching(torch, name) for name in names})
        _catch.put()
    _catchers += 1

    def undo() -> None:
        global _catchers
        _catchers -= 1
        if _catchers == 0 and _catch is not None:
            _catch.back()

    return undo


def _catching(torch: Any, name: str) -> Any:
    plain = _plain(torch, name)

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        offer = _offers.get(id(self))
        if offer is None or offer.tensor() is not self:
            return plain(self, *args, **kwargs)
        ready = _take(offer, self, _device(torch, name, args, kwargs))
        return plain(self if ready is None else ready, *args, **kwargs)

    move.__name__ = move.__qualname__ = name
    move.__doc__ = plain.__doc__
    return move


def _take(offer: _Offer, tensor: Any, device: Any) -> Any:
    """The copy of the offered tensor on `device`, once; None: there is none that still holds."""
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


def _device(torch: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device that a call of `to` or `cuda` names, with its index; None: none."""
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
