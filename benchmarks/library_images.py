"""image_loader against loading picture by picture, and against training on synthetic data.

Pictures of 500 x 375 pixels (ImageNet's average), cut from the two photographs of scikit-learn.
Rates: one pass over them per contender and round, in turn. Share: a small ResNet trains on one
batch that stays, then on the loader's first epoch (every picture decoded), then on a later one
(decoded pictures kept in memory), in turn; the share is of the rates of one round.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import flatout
from flatout_agent.limits import usable_cores

ROOT = Path(__file__).parent.parent
SIZE = 224
WIDTH, HEIGHT = 500, 375
GOAL_SHARE = 0.95
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--model", default="resnet18")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), args.pictures)
        figures = {
            "pictures": args.pictures,
            "rounds": args.rounds,
            "batch_size": args.batch_size,
            "pictures_per_s": rates(Path(folder), args),
            f"share_of_synthetic_rate_{args.model}": shares(Path(folder), args),
            "goal_share": GOAL_SHARE,
        }
    record.write("library_images", figures)


def make(folder: Path, count: int) -> None:
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    rng = random.Random(0)
    for number in range(count):
        photo = photos[number % 2]
        width = rng.randint(400, 560)
        height = width * HEIGHT // WIDTH
        left, top = rng.randint(0, photo.width - width), rng.randint(0, photo.height - height)
        crop = photo.crop((left, top, left + width, top + height)).resize((WIDTH, HEIGHT))
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        crop.save(place / f"{number}.jpg", quality=90)


class Naive(Dataset[Any]):
    """As most programs do it: Pillow, then tensor arithmetic on each picture."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.paths[index]).convert("RGB")
        left, top, width, height = region(image.width, image.height)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - MEAN) / STD, int(self.paths[index].parent.name)


def region(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


def rates(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Pictures per second of each contender, and how many times the naive one's they are."""
    naive = Naive(folder)
    cores = usable_cores()
    kept = flatout.image_loader(folder, args.batch_size, device="cpu", cache="host")
    contenders: dict[str, Iterable[Any]] = {
        "naive": DataLoader(naive, args.batch_size, shuffle=True, drop_last=True),
        "naive_workers": DataLoader(
            naive,
            args.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=cores,
            persistent_workers=True,
        ),
        "image_loader_decoding": flatout.image_loader(
            folder, args.batch_size, device="cpu", cache=False
        ),
        "image_loader_kept": kept,
    }
    for loader in contenders.values():
        timed(loader)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, loader in contenders.items():
            found[name].append(timed(loader))
    ratios = {
        f"{name}_over_naive": middle([a / b for a, b in zip(values, found["naive"], strict=True)])
        for name, values in found.items()
        if name != "naive"
    }
    medians = {name: round(statistics.median(values), 1) for name, values in found.items()}
    return {**medians, **ratios, "workers": cores, "notes": kept.notes}


def timed(loader: Iterable[Any]) -> float:
    """Pictures per second of one pass."""
    began, count = time.perf_counter(), 0
    for _, labels in loader:
        count += len(labels)
    return count / (time.perf_counter() - began)


def shares(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Training rates on the loader's batches over that on one batch that stays."""
    train = trainer(args.model)
    images, labels = next(iter(loader_for(folder, args)))
    steps = args.pictures // args.batch_size
    for _ in range(3):
        train(images, labels)
    found: dict[str, list[float]] = {"synthetic": [], "first_epoch": [], "later_epoch": []}
    for _ in range(args.rounds):
        loader = loader_for(folder, args)
        found["synthetic"].append(trained(train, [(images, labels)] * steps))
        found["first_epoch"].append(trained(train, loader))
        found["later_epoch"].append(trained(train, loader))
        loader.close()
    pairs = {
        name: [a / b for a, b in zip(values, found["synthetic"], strict=True)]
        for name, values in found.items()
        if name != "synthetic"
    }
    medians = {f"{name}_per_s": round(statistics.median(v), 2) for name, v in found.items()}
    return {**{name: middle(values) for name, values in pairs.items()}, **medians}


def loader_for(folder: Path, args: argparse.Namespace) -> Any:
    return flatout.image_loader(folder, args.batch_size, device="cpu", cache="host")


def trainer(name: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    sys.path.insert(0, str(ROOT / "examples" / "images"))
    from resnet import MODELS

    torch.manual_seed(0)
    model = MODELS[name](classes=2).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def trained(train: Callable[..., None], batches: Iterable[Any]) -> float:
    """Pictures per second."""
    began, count = time.perf_counter(), 0
    for images, labels in batches:
        train(images, labels)
        count += len(labels)
    return count / (time.perf_counter() - began)


def middle(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "lowest": round(min(values), 3),
        "highest": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
