"""Gradients that are exchanged as one message, and three ways to send one.

Through shared memory each rank writes its gradients where the others read them, and the averages
are made in the gradients themselves. Elsewhere they are copied into one flat tensor, which is
summed and copied back. A single parameter that no buffer holds is summed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.shared_memory import BUFFER_BYTES

BUCKET_BYTES = 64 * 2**20
"""Of a message between devices: a copy of all gradients at once would cost their memory."""
REAL = (torch.float32, torch.float64)
"""Types that flags can travel in."""


class ParameterKind(NamedTuple):
    """What a parameter's gradient looks like, also when the parameter is gone."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class GradientBucket:
    """Parameters of one type on one device whose gradients are exchanged together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.numbers: list[int] = []
        self.shapes: list[torch.Size] = []
        self.count = 0
        """Values of all gradients."""
        self._places: dict[int, list[torch.Tensor]] = {}

    def add(self, number: int, shape: torch.Size) -> None:
        """Add a parameter; its number says which."""
        self.numbers.append(number)
        self.shapes.append(shape)
        self.count += shape.numel()

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def carries_flags(self) -> bool:
        """Whether flags can travel with it, and be read without waiting for a device."""
        fits = self.bytes <= BUFFER_BYTES
        return self.device.type == "cpu" and self.dtype in REAL and fits

    def places(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Each gradient's place in a flat tensor."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = torch.split(flat[: sum(sizes)], sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def kept_places(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The same in a buffer that is there again at the next step: made once."""
        key = flat.data_ptr()
        if key not in self._places:
            self._places[key] = self.places(flat)
        return self._places[key]

    def message(self, group: RankGroup, flags: Sequence[float]) -> Message:
        """How the ranks send this bucket, with flags or with none; the same way in all of them."""
        parts = group.parts(self.dtype, self.count + len(flags), self.device)
        if parts is not None:
            return SharedMessage(self, group, flags, parts)
        is_large = self.device.type == "cpu" and self.bytes > BUFFER_BYTES
        if is_large and len(self.numbers) == 1 and not flags:
            return InPlaceMessage(self, group, flags)
        return Message(self, group, flags)


class Message:
    """A bucket's gradients one after the other in a tensor of their own."""

    def __init__(self, bucket: GradientBucket, group: RankGroup, flags: Sequence[float]) -> None:
        self.bucket, self.group, self.flags = bucket, group, flags
        self.bytes = (bucket.count + len(flags)) * bucket.dtype.itemsize

    def send(self, gradients: Sequence[torch.Tensor | None]) -> list[float]:
        """Exchange them; returns the sums of the flags. None: this rank has no such gradient."""
        bucket, length = self.bucket, len(self.flags)
        self._flat = torch.empty(bucket.count + length, dtype=bucket.dtype, device=bucket.device)
        filled = []
        for place, gradient in zip(bucket.places(self._flat), gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                filled.append(place)
        if filled:
            torch._foreach_copy_(filled, [each for each in gradients if each is not None])
        if length:
            self._flat[-length:] = torch.tensor(self.flags, dtype=bucket.dtype)
        real = torch.view_as_real(self._flat) if self._flat.is_complex() else self._flat
        self.group.sum_(real)
        return self._flat[-length:].tolist() if length else []

    def write(self, targets: Mapping[int, torch.Tensor]) -> None:
        """Make these gradients the averages; targets: by place in the bucket."""
        if targets:
            self._flat /= self.group.size
            places = self.bucket.places(self._flat)
            torch._foreach_copy_(list(targets.values()), [places[index] for index in targets])


class SharedMessage(Message):
    """A bucket's gradients in memory that all ranks of this machine share."""

    def __init__(
        self,
        bucket: GradientBucket,
        group: RankGroup,
        flags: Sequence[float],
        parts: list[torch.Tensor],
    ) -> None:
        super().__init__(bucket, group, flags)
        self._parts = parts
        self._places = [bucket.kept_places(part) for part in parts]

    def send(self, gradients: Sequence[torch.Tensor | None]) -> list[float]:
        for place, gradient in zip(self._places[self.group.rank], gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                torch.div(gradient, self.group.size, out=place)
        length = len(self.flags)
        if length:
            flags = torch.tensor(self.flags, dtype=self.bucket.dtype)
            self._parts[self.group.rank][-length:] = flags
        self.group.meet()
        if not length:
            return []
        return torch.stack([part[-length:] for part in self._parts]).sum(0).tolist()

    def write(self, targets: Mapping[int, torch.Tensor]) -> None:
        for index, target in targets.items():
            # In the order of the ranks, so that all have the same last digit.
            first, *others = (places[index] for places in self._places)
            torch.add(first, others[0], out=target)
            for other in others[1:]:
                target.add_(other)


class InPlaceMessage(Message):
    """One large gradient: only sent where some rank has changed it, and then in place."""

    def send(self, gradients: Sequence[torch.Tensor | None]) -> list[float]:
        return []

    def write(self, targets: Mapping[int, torch.Tensor]) -> None:
        for target in targets.values():
            whole = target.contiguous()
            self.group.sum_(whole.div_(self.group.size))
            if whole is not target:
                target.copy_(whole)
