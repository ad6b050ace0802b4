"""How a picture becomes size x size: crop, flip and colours.

The random numbers of a batch are drawn at once from the batch's own seed, before a picture is
opened: batches do not depend on workers, decoders or caches. Regions are those of torchvision's
`RandomResizedCrop` and `Resize` + `CenterCrop`; resizing is bilinear with antialiasing, as in both.
On the CPU each picture is resized by torch's uint8 kernel; a batch on a device is cropped and
resized there at once, as two products with matrices of filter weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from flatout_train.errors import UsageError
from flatout_train.images.decoding import Box, Picture

ATTEMPTS = 10
"""Regions tried before the full width or height is used, as in torchvision."""
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
LONGEST = 3
"""If a picture is longer than this multiple of its width, only its middle is resized."""
GAP = 2
"""Evaluation decodes to at least this multiple of the size, where scaled decoding is
indistinguishable from full decoding. Training decodes to the size itself."""
_FLIP = 2 * ATTEMPTS + 2
_COLOUR = _FLIP + 1
DRAWS = _COLOUR + 3
"""Random numbers per picture: area and ratio of each attempt, position, flip, three colours."""

Augment = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Cuts:
    """Which region of a picture is cropped, to which size, and how it is augmented."""

    size: int
    resize: int
    """Length of the shorter side before the centre crop, where the region is not random."""
    random: bool
    flip: bool
    colours: tuple[float, float, float] | None
    """Maximum change of brightness, contrast and saturation."""
    call: Callable[[Tensor], Tensor] | None

    def draw(self, count: int, seed: int) -> Tensor:
        """The random numbers of a batch, uniform in [0, 1): float64 [count, DRAWS] on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(count, DRAWS, generator=generator, dtype=torch.float64)

    def flips(self, draws: Sequence[float]) -> bool:
        return self.flip and draws[_FLIP] < 0.5

    def __str__(self) -> str:
        parts = [
            "random resized crop" if self.random else f"resize to {self.resize}, centre crop",
            *(["flip"] if self.flip else []),
            *(["brightness, contrast and saturation"] if self.colours else []),
            *(["your own function"] if self.call else []),
        ]
        return ", ".join(parts)


def choose(
    augment: Augment, size: int, resize: int | None, train: bool, jitter: float | Sequence[float]
) -> Cuts:
    """The cuts for these arguments; UsageError if one is invalid."""
    if size < 1:
        raise UsageError(f"image_loader: size={size} must be at least 1 pixel.")
    shorter = round(size * 256 / 224) if resize is None else resize
    if shorter < size:
        raise UsageError(f"image_loader: resize={shorter} must be at least size={size}.")
    if not callable(augment) and augment not in ("auto", "flip", "none"):
        raise UsageError(
            f"image_loader: augment={augment!r} must be 'auto', 'flip', 'none' or a callable."
        )
    call = augment if callable(augment) else None
    full = train and augment not in ("flip", "none")
    return Cuts(size, shorter, full, full or augment == "flip", _colours(jitter), call)


def _colours(jitter: float | Sequence[float]) -> tuple[float, float, float] | None:
    parts = (jitter,) * 3 if isinstance(jitter, int | float) else tuple(jitter)
    if len(parts) != 3 or not all(0 <= part <= 1 for part in parts):
        raise UsageError(
            f"image_loader: color_jitter={jitter!r} must be a number in [0, 1], or three of them: "
            "brightness, contrast, saturation."
        )
    return (parts[0], parts[1], parts[2]) if any(parts) else None


def random_box(width: int, height: int, draws: Sequence[float]) -> Box:
    """A region with 8% to 100% of the area and ratio 3/4 to 4/3, as in `RandomResizedCrop`."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for attempt in range(ATTEMPTS):
        area = width * height * (AREA[0] + (AREA[1] - AREA[0]) * draws[2 * attempt])
        ratio = math.exp(low + (high - low) * draws[2 * attempt + 1])
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int((width - w + 1) * draws[2 * ATTEMPTS])
            return left, int((height - h + 1) * draws[2 * ATTEMPTS + 1]), w, h
    w = min(width, max(1, round(height * RATIO[1])))
    h = min(height, max(1, round(width / RATIO[0])))
    return (width - w) // 2, (height - h) // 2, w, h


def cut(picture: Picture, cuts: Cuts, draws: Sequence[float]) -> Tensor:
    """The picture's region, resized, uint8 [size, size, 3]."""
    size = cuts.size
    if cuts.random:
        box = random_box(picture.width, picture.height, draws)
        pixels = picture.region(box, max(size / box[2], size / box[3]))
        done = resized(pixels, size, size)
    else:
        done = centre(picture, cuts)
    return done.flip(1) if cuts.flips(draws) else done


def centre(picture: Picture, cuts: Cuts) -> Tensor:
    """`Resize(resize)` and `CenterCrop(size)`: uint8 [size, size, 3]."""
    width, height = picture.width, picture.height
    box = None
    longest = LONGEST * min(width, height)
    if max(width, height) > longest:  # 1 x 10000 pixels would become 256 x 2,560,000 first
        w, h = min(width, longest), min(height, longest)
        box, width, height = ((width - w) // 2, (height - h) // 2, w, h), w, h
    pixels = picture.region(box, GAP * cuts.resize / min(width, height))
    if width <= height:
        w, h = cuts.resize, int(cuts.resize * height / width)
    else:
        w, h = int(cuts.resize * width / height), cuts.resize
    left, top = round((w - cuts.size) / 2), round((h - cuts.size) / 2)
    return resized(pixels, h, w)[top : top + cuts.size, left : left + cuts.size]


def resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """uint8 [h, w, 3] resized to uint8 [height, width, 3], bilinear with antialiasing."""
    if pixels.shape[0] == height and pixels.shape[1] == width:
        return pixels
    images = pixels.contiguous().permute(2, 0, 1)[None]
    if pixels.device.type != "cpu":  # torch has a uint8 kernel for the CPU only
        images = images.float()
    done = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    if done.dtype != torch.uint8:
        done = done.round_().clamp_(0, 255).to(torch.uint8)
    return done[0].permute(1, 2, 0)


def cut_on_canvas(canvas: Tensor, size: int, box: Box, flip: bool) -> Tensor:
    """A region of a canvas, uint8 [h, w, 3] -> [size, size, 3], as `cut_together` computes it."""
    left, top, width, height = box
    done = resized(canvas[top : top + height, left : left + width], size, size)
    return done.flip(1) if flip else done


def cut_together(canvases: Tensor, size: int, boxes: Tensor, flips: Tensor) -> Tensor:
    """Regions of a batch on a device, all at once.

    canvases uint8 [n, h, w, 3]; boxes int64 [n, 4] (left, top, width, height); flips bool [n]; all
    on one device. Returns [n, 3, size, size] in [0, 255], rounded; float32 on the CPU, or float16.
    """
    dtype = torch.float32 if canvases.device.type == "cpu" else torch.float16
    across = _filter(boxes[:, 0], boxes[:, 2], canvases.shape[2], size)
    across = torch.where(flips[:, None, None], across.flip(1), across).to(dtype)
    down = _filter(boxes[:, 1], boxes[:, 3], canvases.shape[1], size).to(dtype)
    planes = canvases.permute(0, 3, 1, 2).to(dtype)
    rows = torch.matmul(down[:, None], planes)
    return torch.matmul(rows, across[:, None].transpose(-1, -2)).round_().clamp_(0, 255)


def _filter(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Interpolation weights from the pixels of a side to those of a region: [n, size, side]."""
    scale = (length / size)[:, None, None]
    support = scale.clamp(min=1)
    at = torch.arange(size, device=start.device)[None, :, None] + 0.5
    pixel = torch.arange(side, device=start.device)[None, None, :]
    first = start[:, None, None]
    inside = (pixel >= first) & (pixel < first + length[:, None, None])
    distance = (pixel - first + 0.5 - at * scale).abs() / support
    weights = (1 - distance).clamp(min=0) * inside
    return weights / weights.sum(-1, keepdim=True)


def recolour(images: Tensor, cuts: Cuts, draws: Tensor) -> Tensor:
    """Jitter brightness, contrast and saturation per picture: float [n, 3, h, w] in [0, 255].

    Factors are uniform in [1 - change, 1 + change] as in torchvision's `ColorJitter`; the order of
    the three, which torchvision draws for each call, is drawn once per batch.
    """
    if cuts.colours is None:
        return images
    drawn = draws[:, _COLOUR : _COLOUR + 3]
    most = torch.tensor(cuts.colours, dtype=drawn.dtype)
    factors = (1 + most * (2 * drawn - 1)).to(images.device, images.dtype)
    order = sorted(range(3), key=lambda part: float(draws[0, part]))
    luma = torch.tensor([0.299, 0.587, 0.114], device=images.device, dtype=images.dtype)
    for part in order:
        factor = factors[:, part].view(-1, 1, 1, 1)
        if part == 0:
            images = (images * factor).clamp_(0, 255)
            continue
        grey = (images * luma.view(1, 3, 1, 1)).sum(1, keepdim=True)
        base = grey.mean((1, 2, 3), keepdim=True) if part == 1 else grey
        images = torch.lerp(base.expand_as(images), images, factor).clamp_(0, 255)
    return images


class Normalise:
    """(pixels / 255 - mean) / std as one multiplication and addition; channels last."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device, dtype: torch.dtype
    ) -> None:
        if len(mean) != 3 or len(std) != 3 or not all(part > 0 for part in std):
            raise UsageError("image_loader: mean= and std= need three numbers each, std above 0.")
        factor = 1 / (255 * torch.tensor(std, dtype=torch.float64))
        offset = -255 * torch.tensor(mean, dtype=torch.float64) * factor
        self._factor, self._offset = factor.to(device, torch.float32), offset.to(device).float()
        self._dtype = dtype

    def __call__(self, images: Tensor) -> Tensor:
        """[n, 3, h, w] of any dtype in [0, 255] -> normalised, channels last in memory."""
        return self.by_rows(images) if images.device.type == "cpu" else self.at_once(images)

    def by_rows(self, images: Tensor) -> Tensor:
        """As rows of width * 3 numbers: an innermost dimension of 3 is slow on the CPU."""
        n, _, height, width = images.shape
        rows = images.permute(0, 2, 3, 1).reshape(n, height, width * 3).float()
        done = torch.addcmul(self._offset.repeat(width), rows, self._factor.repeat(width))
        return done.to(self._dtype).view(n, height, width, 3).permute(0, 3, 1, 2)

    def at_once(self, images: Tensor) -> Tensor:
        """In one kernel, which also converts input and output dtypes."""
        out = torch.empty(
            images.shape,
            dtype=self._dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        factor, offset = self._factor.view(1, 3, 1, 1), self._offset.view(1, 3, 1, 1)
        torch.addcmul(offset, images, factor, out=out)
        return out
