"""`image_loader()`: pictures from a folder to the device: decoded, cropped, normalised.

All arguments of `image_loader(folder, batch_size, ...)`:

folder: holds one folder per class with the pictures below it (as torchvision's `ImageFolder`).
batch_size: pictures per batch of this process.
size: side of the images in pixels; every image is size x size.
train: shuffle, augment, and yield batches of one shape. False: in order, resized and
    centre-cropped, every picture once.
device: "auto" is `flatout.device()`.
workers: threads that read and decode; "auto" is one per core available to this process. Decoders
    release the GIL, so threads decode in parallel and share caches and batches.
seed: seed of the order and of all random augmentation: the same seed gives the same batches,
    whatever the number of workers or the content of the cache.
augment: "auto": in training a random resized crop and flip, else none. "flip": centre crop,
    flipped at random. "none". Or a function from the uint8 batch [n, 3, size, size] on the device
    to one of n images in [0, 255], called after cropping ("auto"), in the program's own thread.
color_jitter: maximum change of brightness, contrast and saturation, in [0, 1], as in torchvision's
    `ColorJitter`; one number or three. If passed, it also applies with train=False.
cache: "auto": keep the decoded pictures in host memory if they fit (`notes["cache"]` says whether
    and why). "host": keep them whatever the room. False: no cache. Cached pictures are at most
    twice `size` (256/224 where that does not fit).
decoder: "pillow" (on the CPU), "torchvision:cuda" (on an NVIDIA GPU), or "auto": on the GPU where
    that is faster (`notes["decoder"]` has the rates).
labels: a mapping from a picture's name below `folder` to its label, or None for the class folders.
classes: the class names in order, such as another loader's `classes`: for a validation folder in
    which a class has no pictures.
drop_last: drop the last batch of an epoch if it is short, or None to do so only in training.
resize: length of the shorter side before the centre crop, in pixels, or None for size * 256 / 224.
mean, std: per channel, for pixels in [0, 1]; by default those of ImageNet.
dtype: dtype of the images.
prefetch: batches that are prepared ahead of time.

Corrupt files (truncated, empty, not a picture, unreadable, a decompression bomb) are skipped and
listed in `skipped`; a warning at the end of the epoch gives the number of new ones. In training the
next intact picture takes the place of a corrupt one, so batches keep their shape; otherwise the
batch is shorter.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout_agent.limits import local_processes, usable_cores
from flatout_train.devices import device as best_device
from flatout_train.errors import UsageError
from flatout_train.images import augmenting
from flatout_train.images import cache as image_cache
from flatout_train.images import folder as image_folder
from flatout_train.images.augmenting import Augment, Cuts, Normalise
from flatout_train.images.cache import Canvases, Side
from flatout_train.images.finishing import Finisher
from flatout_train.images.folder import ImageFiles, Labels
from flatout_train.images.pipeline import Pipeline
from flatout_train.images.probing import ImageProbe, probe
from flatout_train.images.reading import Reader, SkippedImage, summary
from flatout_train.loader.epochs import BatchMark, EpochLoader, Marked
from flatout_train.loader.sampling import IndexOrder, World, world

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def image_loader(
    folder: str | os.PathLike[str],
    batch_size: int,
    *,
    size: int = 224,
    train: bool = True,
    device: torch.device | str = "auto",
    workers: int | str = "auto",
    seed: int = 0,
    augment: Augment = "auto",
    color_jitter: float | Sequence[float] = 0.0,
    cache: str | bool = "auto",
    decoder: str = "auto",
    labels: Labels | None = None,
    classes: Sequence[str] | None = None,
    drop_last: bool | None = None,
    resize: int | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: torch.dtype = torch.float32,
    prefetch: int = 2,
) -> ImageLoader:
    """Batches of pictures, already on the device.

    Yields (images, labels): images of `dtype` [n, 3, size, size], normalised, in channels-last
    memory format; labels int64 [n], indices into `.classes`. Iterate it once per epoch; the next
    pass is the next epoch. `state_dict()` and `load_state_dict()` resume at the exact picture.
    If `torch.distributed` is initialised, each rank gets its share of every epoch, in the same
    number of batches. The module `flatout_train.images.image_loader` documents the arguments.

    Raises UsageError for invalid arguments, for a folder without pictures or classes, and if more
    than half of the pictures tried cannot be read.
    """
    _check(batch_size, workers, prefetch, dtype)
    cuts = augmenting.choose(augment, size, resize, train, color_jitter)
    pictures = image_folder.find(folder, labels, classes)
    target = best_device() if device == "auto" else torch.device(device)
    short = drop_last if drop_last is not None else train
    order = IndexOrder(len(pictures), batch_size, shuffle=train, seed=seed, drop_last=short)
    if order.batches(world()) == 0:
        raise UsageError(
            f"image_loader: {len(pictures)} pictures are fewer than one batch of {batch_size} for "
            f"each of {world().size} processes; pass a smaller batch_size, or drop_last=False."
        )
    normalise = Normalise(mean, std, target, dtype)
    number = workers if isinstance(workers, int) else None
    return ImageLoader(
        ImageSettings(
            pictures, order, cuts, normalise, target, number, cache, decoder, train, prefetch
        )
    )


def _check(batch_size: int, workers: int | str, prefetch: int, dtype: torch.dtype) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"image_loader: batch_size={batch_size!r} must be a number of at least 1.")
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise UsageError(f"image_loader: workers={workers!r} must be 'auto' or a number from 0.")
    if prefetch < 0:
        raise UsageError(f"image_loader: prefetch={prefetch!r} must be at least 0.")
    if not dtype.is_floating_point:
        raise UsageError(f"image_loader: dtype={dtype} must be a floating-point type.")


@dataclass(frozen=True)
class ImageSettings:
    """The pictures, their order, the operations on each, and how they are loaded."""

    pictures: ImageFiles
    order: IndexOrder
    cuts: Cuts
    normalise: Normalise
    device: torch.device
    workers: int | None
    cache: str | bool
    decoder: str
    replace: bool
    """Whether a corrupt picture is replaced by another; else it is dropped."""
    prefetch: int


class ImageSource:
    """The batches of an image_loader's epochs, and the pipeline that makes them."""

    def __init__(self, settings: ImageSettings, notes: dict[str, str]) -> None:
        self.settings, self.notes = settings, notes
        self.pictures, self.order = settings.pictures, settings.order
        cores = max(1, usable_cores() // local_processes())
        self._workers = cores if settings.workers is None else settings.workers
        self.probe: ImageProbe = probe(
            self.pictures, settings.decoder, settings.device, max(1, self._workers)
        )
        notes["augment"] = str(settings.cuts)
        notes["workers"] = f"{self._workers} threads" + (
            f", one for each usable core ({cores})" if settings.workers is None else ""
        )
        notes["pictures"] = f"{len(self.pictures)} in {len(self.pictures.classes)} classes" + (
            f"; {n} other files ignored" if (n := self.pictures.left_out) else ""
        )
        self._digest = self.pictures.digest()
        self._reported = 0
        self.pipeline = self._make_pipeline(
            image_cache.canvases(settings.cuts, self.probe.sides), None
        )

    def _make_pipeline(self, sizes: Sequence[Side], through: Side | None) -> Pipeline:
        """The pipeline for the largest of these canvases that fits into memory."""
        settings, probe, count = self.settings, self.probe, len(self.pictures)
        chosen = image_cache.plan(settings.cache, count, sizes, image_cache.room(), through)
        kept = chosen.canvas if chosen.keeps else None
        reader = Reader(
            self.pictures,
            settings.cuts,
            decodes_on_device=probe.device_decoder is not None and kept is None,
            canvas=chosen.canvas,
            canvases=None if kept is None else Canvases(count, kept),
            replace=settings.replace,
        )
        finisher = Finisher(reader, settings.device, settings.normalise, probe.device_decoder)
        self.notes["cache"] = chosen.reason if chosen.keeps else f"no: {chosen.reason}"
        self.notes["decoder"] = probe.reason
        return Pipeline(reader, finisher, self._workers, settings.prefetch)

    def adopt(self, canvas: Sequence[int] | None) -> None:
        """Adopt the resolution in which a saved run cached its pictures: it affects the pixels."""
        side = (canvas[0], canvas[1]) if canvas else None
        if self.settings.cuts.random and side != self.pipeline.reader.canvas:
            self.pipeline.close()
            self.pipeline = self._make_pipeline([side] if side else [], side)

    def batches(self, epoch: int, mark: BatchMark | None, world: World) -> Marked:
        position = 0 if mark is None else mark["position"]
        for batch, end in self.pipeline.run(self.order.requests(epoch, position, world)):
            yield batch, {"position": end}
        self.pipeline.reader.check()
        self._report()

    def _report(self) -> None:
        """Warn of the pictures that were found corrupt since the last warning."""
        skipped = list(self.pipeline.reader.skipped.values())
        new, self._reported = skipped[self._reported :], len(skipped)
        if new:
            warnings.warn(
                f"image_loader: {len(new)} pictures of {self.pictures.folder} cannot be read and "
                f"were skipped in this epoch, such as {summary(new)}; .skipped lists them",
                stacklevel=4,
            )

    def length(self, world: World) -> int:
        return self.order.batches(world)

    def left(self, mark: BatchMark, world: World) -> bool:
        return self.order.left(mark["position"], world)

    def identity(self) -> dict[str, Any]:
        return {
            "pictures": len(self.pictures),
            "names_and_labels": self._digest,
            "shuffle": self.order.shuffle,
        }

    def close(self) -> None:
        self.pipeline.close()


class ImageLoader(EpochLoader):
    """Result of `flatout.image_loader`. `len()`: batches per epoch, for this rank.

    `classes`: names; `class_to_index`: name -> label. `skipped`: the pictures that could not be
    read, with `path` and `reason`. `notes` says what was chosen and why: "decoder", "cache",
    "augment", "workers", "pictures". After `close()` it cannot be iterated any more.
    """

    name = "image_loader"

    def __init__(self, settings: ImageSettings) -> None:
        notes: dict[str, str] = {}
        self._images = ImageSource(settings, notes)
        super().__init__(self._images, settings.device, settings.order.seed)
        self.notes, self.pictures = notes, settings.pictures
        self.classes = list(settings.pictures.classes)
        self.class_to_index = {name: index for index, name in enumerate(self.classes)}

    @property
    def skipped(self) -> list[SkippedImage]:
        """The pictures that could not be read, with path and reason."""
        return list(self._images.pipeline.reader.skipped.values())

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were yielded; any number of ranks can load it.

        Only numbers, strings, lists and dicts. The same on every rank.
        """
        decoder, canvas = self._images.probe.device_decoder, self._images.pipeline.reader.canvas
        return {
            **super().state_dict(),
            "canvas": list(canvas) if canvas else None,
            "decoder": "cpu" if decoder is None else decoder.name,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the batch that follows those of `state`, as if without interruption.

        Raises UsageError if it is the state of other pictures, or of another order or seed.
        """
        super().load_state_dict(state)
        self._images.adopt(state["canvas"])
        if (decoder := self.state_dict()["decoder"]) != state["decoder"]:
            self.notes["resume"] = (
                f"decoded by {state['decoder']} before and by {decoder} now: pixels differ by 1 or "
                "2 levels, on a GPU by 25 and more at colour edges (a JPEG file has one colour for "
                "2x2 pixels: nvJPEG repeats it, Pillow interpolates)"
            )
