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
    whatever the number of workers, the decoder on the CPU, or the content of the cache.
augment: "auto": in training a random resized crop and flip, else none. "flip": centre crop,
    flipped at random. "none". Or a function from the uint8 batch [n, 3, size, size] on the device
    to one of n images in [0, 255], called after cropping ("auto"), in the program's own thread.
color_jitter: maximum change of brightness, contrast and saturation, in [0, 1], as in torchvision's
    `ColorJitter`; one number or three. If passed, it also applies with train=False.
cache: "auto": keep the decoded pictures in host memory if they fit (`notes["cache"]` says whether
    and why). "host": keep them whatever the room. False: no cache. Cached pictures are at most
    twice `size` (256/224 where that does not fit).
decoder: "auto", or the name of a decoder: see `notes["decoder"]`.
labels: a mapping, or a CSV file, from a picture's name below `folder` to its label (see
    `flatout_train.images.folder.find`), or None for the class folders.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout_agent.limits import local_processes, usable_cores
from flatout_train.errors import UsageError
from flatout_train.images import cache as image_cache
from flatout_train.images.arguments import ImageSettings, settings
from flatout_train.images.augmenting import Augment
from flatout_train.images.cache import Canvases, Side
from flatout_train.images.finishing import Finisher
from flatout_train.images.folder import Labels
from flatout_train.images.pipeline import Pipeline
from flatout_train.images.probing import ImageProbe, probe
from flatout_train.images.reading import Reader, Skipped
from flatout_train.loader.sampling import world

VERSION = 1
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
    return ImageLoader(settings(**locals()))


class ImageLoader:
    """Result of `flatout.image_loader`. `len()`: batches per epoch, for this rank.

    `classes`: names; `class_to_index`: name -> label. `skipped`: the pictures that could not be
    read, with `path` and `reason`; its `len()` counts all of them. `notes` says what was chosen and
    why: "decoder", "cache", "augment", "workers", "pictures".
    """

    def __init__(self, settings: ImageSettings) -> None:
        self.pictures, self.device = settings.pictures, settings.device
        self.classes = list(settings.pictures.classes)
        self.class_to_index = {name: index for index, name in enumerate(self.classes)}
        self._settings, self._order, self._cuts = settings, settings.order, settings.cuts
        cores = max(1, usable_cores() // local_processes())
        self._workers = cores if settings.workers is None else settings.workers
        self._probe = probe(
            self.pictures,
            settings.decoder,
            self.device,
            max(1, self._workers),
        )
        self.notes: dict[str, str] = {
            "augment": str(self._cuts),
            "workers": f"{self._workers} threads"
            + (f", one for each usable core ({cores})" if settings.workers is None else ""),
            "pictures": f"{len(self.pictures)} in {len(self.classes)} classes"
            + (f"; {n} other files ignored" if (n := self.pictures.left_out) else ""),
        }
        self._digest = self.pictures.digest()
        self._epoch, self._position = 0, 0
        self._fresh = True
        """Whether the next pass is of `_epoch`, from `_position` on; else a pass has begun."""
        self._passes = 0
        self._reported = 0
        self._pipeline = self._make_pipeline(
            image_cache.canvases(self._cuts, self._probe.sides), None
        )

    def _make_pipeline(self, sizes: Sequence[Side], through: Side | None) -> Pipeline:
        """The pipeline for the largest of these canvases that fits into memory."""
        probe: ImageProbe = self._probe
        count = len(self.pictures)
        chosen = image_cache.plan(self._settings.cache, count, sizes, image_cache.room(), through)
        kept = chosen.canvas if chosen.keeps else None
        reader = Reader(
            self.pictures,
            self._cuts,
            decoder=probe.decoder,
            decodes_on_device=probe.device_decoder is not None and kept is None,
            canvas=chosen.canvas,
            canvases=None if kept is None else Canvases(count, kept),
            replace=self._settings.replace,
        )
        finisher = Finisher(reader, self.device, self._settings.normalise, probe.device_decoder)
        self.notes["cache"] = chosen.reason if chosen.keeps else f"no: {chosen.reason}"
        self.notes["decoder"] = probe.reason
        return Pipeline(reader, finisher, self._workers, self._settings.prefetch)

    @property
    def skipped(self) -> Skipped:
        """Pictures that could not be read: iterate for path and reason; `len()` counts all."""
        return self._pipeline.reader.skipped

    def __len__(self) -> int:
        return self._order.batches(world())

    @property
    def epoch(self) -> int:
        """The epoch of the next batch: `for epoch in range(loader.epoch, epochs)` resumes."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass start this epoch.

        If a loaded state is in the middle of this epoch, the pass resumes there: a loop that calls
        `set_epoch(epoch)` before each pass resumes without a change.
        """
        if not (self._fresh and epoch == self._epoch):
            self._go_to(epoch, 0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self._fresh:
            self._go_to(self._epoch + 1, 0)
        self._fresh = False
        self._passes += 1
        return self._pass(self._epoch, self._position, self._passes)

    def _pass(self, epoch: int, position: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        ranks = world()
        requests = self._order.requests(epoch, position, ranks)
        for batch, end in self._pipeline.run(requests):
            if number != self._passes:
                raise UsageError(
                    "this pass ended when the image_loader began another pass or its position was "
                    "changed: create a second loader for concurrent passes."
                )
            self._position = end
            if not self._order.left(end, ranks):
                self._go_to(epoch + 1, 0)
                number = self._passes
            yield batch
        if number == self._passes and self._epoch == epoch:  # the last pictures were all skipped
            self._go_to(epoch + 1, 0)
        self._pipeline.reader.check()
        self._report()

    def _go_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position, self._fresh = epoch, position, True
        self._passes += 1  # ends the current pass

    def _report(self) -> None:
        """Warn of the pictures that were found corrupt since the last warning."""
        skipped = self.skipped
        new, self._reported = len(skipped) - self._reported, len(skipped)
        if new:
            named = skipped.named[-new:] if new <= len(skipped.named) else skipped.named
            warnings.warn(
                f"image_loader: {new} pictures of {self.pictures.folder} cannot be read and were "
                f"skipped in this epoch, such as {skipped.summary(named)}; .skipped lists them",
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were yielded; any number of ranks can load it.

        Only numbers, strings, lists and dicts. The same on every rank.
        """
        decoder, canvas = self._probe.device_decoder, self._pipeline.reader.canvas
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "position": self._position,
            "order": self._identity(),
            "canvas": list(canvas) if canvas else None,
            "decoder": "cpu" if decoder is None else decoder.name,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the batch that follows those of `state`, as if without interruption.

        Raises UsageError if it is the state of other pictures, or of another order or seed.
        """
        if state.get("version") != VERSION:
            raise UsageError(
                f"the image_loader's state has version {state.get('version')!r}, this flatout "
                f"reads {VERSION}: load it with the version of flatout that wrote it."
            )
        for name, ours in self._identity().items():
            if ours != state["order"].get(name):
                raise UsageError(
                    f"the image_loader's state belongs to another order: {name} was "
                    f"{state['order'].get(name)!r}, now it is {ours!r}. Create the loader with the "
                    f"same folder (now {self.pictures.folder}) and arguments."
                )
        self._resolve(state["canvas"])
        if (decoder := self.state_dict()["decoder"]) != state["decoder"]:
            self.notes["resume"] = (
                f"decoded by {state['decoder']} before and by {decoder} now: pixels differ by 1 or "
                "2 levels, on a GPU by 25 and more at colour edges (a JPEG file has one colour for "
                "2x2 pixels: nvJPEG repeats it, decoders on the host interpolate)"
            )
        self._go_to(int(state["epoch"]), int(state["position"]))

    def _identity(self) -> dict[str, Any]:
        """Settings that must be equal for a position to have the same meaning."""
        return {
            "pictures": len(self.pictures),
            "names_and_labels": self._digest,
            "shuffle": self._order.shuffle,
            "seed": self._order.seed,
        }

    def _resolve(self, canvas: Sequence[int] | None) -> None:
        """Adopt the resolution in which a saved run cached its pictures: it affects the pixels."""
        side = (canvas[0], canvas[1]) if canvas else None
        if self._cuts.random and side != self._pipeline.reader.canvas:
            self._pipeline.close()
            self._pipeline = self._make_pipeline([side] if side else [], side)

    def close(self) -> None:
        """Stop the threads; the loader cannot be iterated any more."""
        self._passes += 1
        self._pipeline.close()
