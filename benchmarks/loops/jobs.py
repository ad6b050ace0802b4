"""The jobs that every loop trains: a recipe's model at a size for two cores, its data, its rate.

A loop is a file with `steps(job)`: a generator that trains for ever and yields the loss after each
optimizer step. Model, initial weights, loss, optimizer, batch and augmentation are the job's, so
that loops differ in nothing but how they do it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

RECIPES = Path(__file__).parents[2] / "examples/recipes"
if str(RECIPES) not in sys.path:
    sys.path.insert(0, str(RECIPES))

import bert_large  # noqa: E402
import data  # noqa: E402
import gpt3_small  # noqa: E402
import resnet50  # noqa: E402

NAMES = ("resnet", "gpt", "bert")
JITTER = 0.3
"""Largest change of brightness, contrast and saturation."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Job:
    """What is trained. `model()` gives the same initial weights each time."""

    name: str
    model: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, Any], Tensor]
    dataset: Dataset[Any]
    """Samples, made one by one, as an ordinary user writes it."""
    batch: int
    rate: float
    clip: float | None = None
    order: Sequence[int] | None = None
    """In which samples come, so that all loops see the same batches; None: each shuffles."""
    pictures: Path | None = None
    """Folder of the training pictures, one folder per class."""
    size: int = 0
    """Side of the images in pixels."""

    def loader(self, **options: Any) -> DataLoader[Any]:
        """As an ordinary user has it."""
        return DataLoader(
            self.dataset,
            self.batch,
            shuffle=self.order is None,
            sampler=self.order,
            drop_last=True,
            **options,
        )

    def optimizer(self, parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.AdamW:
        return torch.optim.AdamW(parameters, lr=self.rate, weight_decay=0.05, **options)


def make(name: str, quick: bool = False) -> Job:
    """The job of that name; `quick`: so small that it only shows that the loops run and agree."""
    return {"resnet": resnet, "gpt": gpt, "bert": bert}[name](quick)


def resnet(quick: bool) -> Job:
    config = dataclasses.replace(resnet50.SMALL, size=96)
    if quick:
        config = dataclasses.replace(config, depths=(1, 1, 1, 1), width=8, size=64)
    folder = pictures(200 if quick else 800)
    return Job(
        "resnet",
        functools.partial(_seeded, resnet50.ResNet, config),
        picture_loss,
        Pictures(folder, config.size),
        batch=16 if quick else 32,
        rate=1e-3,
        pictures=folder,
        size=config.size,
    )


def gpt(quick: bool) -> Job:
    config = gpt3_small.SMALL
    if quick:
        config = dataclasses.replace(config, layers=2, width=64, heads=2, context=64)
    _, tokens, _ = data.text(config.vocabulary, small=True)
    windows = data.Windows(tokens, config.context, more=1)
    return Job(
        "gpt",
        functools.partial(_seeded, gpt3_small.GPT, config),
        gpt3_small.loss_fn,
        windows,
        batch=8,
        rate=1e-3,
        clip=1.0,
        order=shuffled(len(windows)),
    )


def bert(quick: bool) -> Job:
    config = bert_large.Config(6, 384, 6, context=128, vocabulary=4096)
    if quick:
        config = dataclasses.replace(config, layers=2, width=64, heads=2, context=64)
    _, tokens, _ = data.text(config.vocabulary, small=True)
    windows = bert_large.Masked(tokens, config.context)
    return Job(
        "bert",
        functools.partial(_seeded, bert_large.Bert, config),
        bert_large.loss_fn,
        windows,
        batch=16,
        rate=5e-4,
        clip=1.0,
        order=shuffled(len(windows)),
    )


def shuffled(count: int) -> list[int]:
    """The numbers below `count` in a fixed random order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()


def pictures(count: int) -> Path:
    """The folder of `count` pictures, written once for this machine; those to train on."""
    folder = Path(tempfile.gettempdir()) / f"flatout-benchmark-pictures-{count}"
    return Path(data.pictures(folder, count)) / "train"


def picture_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


class Pictures(Dataset[Any]):
    """Decoded and augmented one by one with Pillow: the recipe of ImageNet, and colours."""

    def __init__(self, folder: Path, size: int) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, ImageEnhance

        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        left, top, width, height = random_region(*image.size)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((self.size, self.size), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = change(image).enhance(random.uniform(1 - JITTER, 1 + JITTER))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        pixels = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        return pixels, self.classes.index(path.parent.name)


def random_region(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width, height: 8 % to 100 % of the area, ratio 3:4 to 4:3 (Inception's crop)."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _seeded(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(config)
