"""The same loop as an expert writes it for a CPU by hand, without flatout.

bf16 autocast, channels-last, one compiled graph of model and loss, the fused optimizer, gradients
set to None, no `.item()` in the loop, glibc told to keep freed memory, Python's garbage collector
out of the way. Data: texts are one tensor, indexed a batch at a time; pictures are decoded once
and kept, then cut, resized and flipped as uint8 tensors by threads, ahead of the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import queue
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from loops.jobs import JITTER, MEAN, STD, Job, data, random_region

COMPILE = {"resnet": True, "gpt": True, "bert": True}
"""Whether compiling pays: measured, on a machine with AVX512_BF16 and two cores."""
AHEAD = 2
"""Batches that are prepared ahead."""
KEEP = 2
"""Decoded pictures are kept at most this many times as large as they are used."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def steps(job: Job) -> Iterator[Tensor]:
    keep_memory()
    torch.set_flush_denormal(True)
    model = job.model()
    images = job.pictures is not None
    if images:
        model = model.to(memory_format=torch.channels_last)
    optimizer = job.optimizer(model.parameters(), fused=True)
    parameters = list(model.parameters())

    def forward(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return job.loss_fn(model, batch)

    if COMPILE[job.name]:
        # The compiler's own random numbers are slow on a CPU: dropout would cost more than is won.
        forward = torch.compile(forward, options={"fallback_random": True})
    batches = {"resnet": picture_batches, "gpt": text_batches, "bert": masked_batches}[job.name]
    for taken, batch in enumerate(ahead(batches(job))):
        loss = forward(batch)
        loss.backward()
        if job.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, job.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach()
        if taken == 2:  # all that lives long is there
            gc.collect()
            gc.freeze()
            gc.disable()


def keep_memory() -> None:
    """Large blocks come from glibc's heap and stay there: no page is cleared anew in each step."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_TOP_PAD, 64 * 2**20)


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, made by a thread, `AHEAD` of them before they are asked for."""
    ready: queue.Queue[Any] = queue.Queue(AHEAD)

    def fill() -> None:
        torch.set_num_threads(1)  # of this thread: the model has the others
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def orders(job: Job, count: int) -> Iterator[Tensor]:
    """Indices of each batch, for ever."""
    full = count // job.batch * job.batch
    while True:
        order = torch.randperm(count) if job.order is None else torch.tensor(job.order)
        yield from order[:full].view(-1, job.batch)


def text_batches(job: Job) -> Iterator[Tensor]:
    windows = pieces(job.dataset)
    for index in orders(job, len(windows)):
        yield windows[index]


def masked_batches(job: Job) -> Iterator[dict[str, Tensor]]:
    """As `bert_large.Masked`, for a whole batch at once."""
    windows = pieces(job.dataset)
    length = windows.shape[1]
    hidden = round(0.15 * length)
    for index in orders(job, len(windows)):
        words = windows[index]
        places = torch.rand(words.shape).argsort(1)[:, :hidden]
        right = words.gather(1, places)
        kind = torch.rand(places.shape)
        wrong = words.gather(1, torch.randint(length, places.shape))
        shown = torch.where(kind < 0.8, data.MASK, torch.where(kind < 0.9, right, wrong))
        yield {"tokens": words.scatter(1, places, shown), "places": places, "words": right}


def pieces(dataset: Any) -> Tensor:
    """All windows as one view [count, length + more] of the text."""
    length = dataset.length + dataset.more
    return dataset.tokens.unfold(0, length, dataset.length)


def picture_batches(job: Job) -> Iterator[tuple[Tensor, Tensor]]:
    assert job.pictures is not None
    paths = sorted(job.pictures.glob("*/*.jpg"))
    classes = sorted({path.parent.name for path in paths})
    labels = torch.tensor([classes.index(path.parent.name) for path in paths])
    kept: list[Tensor | None] = [None] * len(paths)
    scale = (1 / torch.tensor(STD) / 255).view(1, 3, 1, 1)
    bias = (-torch.tensor(MEAN) / torch.tensor(STD)).view(1, 3, 1, 1)

    def one(index: int) -> Tensor:
        found = kept[index]
        if found is None:
            found = kept[index] = decoded(paths[index], KEEP * job.size)
        return region(found, job.size)

    alone = {"initializer": torch.set_num_threads, "initargs": (1,)}  # no team for each thread
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), **alone) as pool:
        for index in orders(job, len(paths)):
            batch = torch.stack(list(pool.map(one, index.tolist())))
            images = jittered(batch.float(), JITTER) * scale + bias
            yield images.contiguous(memory_format=torch.channels_last), labels[index]


def decoded(path: Any, largest: int) -> Tensor:
    """uint8 [3, height, width], channels-last; scaled down while decoding where that is enough."""
    from PIL import Image

    image = Image.open(io.BytesIO(path.read_bytes()))
    image.draft("RGB", (largest, largest))
    image = image.convert("RGB")
    if min(image.size) > largest:
        ratio = largest / min(image.size)
        image = image.resize([round(side * ratio) for side in image.size], Image.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def region(picture: Tensor, size: int) -> Tensor:
    """A random region, resized by torch's uint8 kernel, flipped or not: [3, size, size]."""
    _, height, width = picture.shape
    left, top, w, h = random_region(width, height)
    cut = picture[None, :, top : top + h, left : left + w]
    done = F.interpolate(cut, (size, size), mode="bilinear", antialias=True)[0]
    return done.flip(2) if random.random() < 0.5 else done


def jittered(images: Tensor, most: float) -> Tensor:
    """Other brightness, contrast and saturation for each of float images [N, 3, H, W] in 0..255."""

    def factors() -> Tensor:
        return 1 + most * (2 * torch.rand(len(images), 1, 1, 1) - 1)

    grey = torch.tensor((0.299, 0.587, 0.114)).view(1, 3, 1, 1)
    images = images.mul(factors()).clamp_(0, 255)
    mean = (images * grey).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    images = images.sub_(mean).mul_(factors()).add_(mean).clamp_(0, 255)
    brightness = (images * grey).sum(1, keepdim=True)
    return images.sub_(brightness).mul_(factors()).add_(brightness).clamp_(0, 255)
