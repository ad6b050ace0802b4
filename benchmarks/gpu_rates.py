"""Training rates on one GPU: `flatout.train_step`, a plain loop, and an expert's, in one process.

One part per process: `python gpu_rates.py <part>` prints its figures as a line of JSON after each
of the three, the last line holding all. "eager" is the loop as it is usually written, in bf16
autocast; "expert" adds what PyTorch's own guides advise: model and loss in one compiled graph,
fused optimizer, channels-last images, TF32, cuDNN's search, nothing read in the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import flatout

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples" / "recipes"))

WINDOWS = 4
WINDOW_S = 1.5
PLAIN = {"eager": {}, "expert": {"fused": True}}


@dataclass(frozen=True)
class Work:
    """One training job. What is measured is the whole step on batches that are at hand."""

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    batch: Callable[[torch.device], Any]
    amount: int
    """What a batch counts, in `unit`."""
    unit: str
    goal: float
    """Of `unit` a second, on one H200."""
    clip_norm: float | None = None
    images: bool = False
    compile: str = "auto"
    """As `train_step` takes it, on a GPU."""
    """As `train_step` takes it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    for figures in PARTS[arguments.part](arguments.small):
        print(json.dumps(figures), flush=True)


def parts(dry: bool) -> list[tuple[Any, ...]]:
    """For `gpu.py`: name, command, limit in seconds, words."""
    limits = {
        "gpt2": 150,
        "resnet50": 140,
        "bert_large": 150,
        "resnet50_jpeg": 120,
        "gpt2_whole": 90,
    }
    script, small = str(HERE / "gpu_rates.py"), ("--small",) if dry else ()
    return [
        (part, (script, part, *small), limits[part], words)
        for part in PARTS
        if not (dry and part == "gpt2_whole")
    ]


def words(figures: dict[str, Any]) -> str:
    shares = [f"{figures[f'to_{way}']}x {way}" for way in PLAIN if f"to_{way}" in figures]
    rate = f"{figures['flatout']['per_s']:,.0f} {figures['unit']}/s, goal {figures['goal']:,.0f}"
    return ", ".join([rate, *shares])


def gpt2(small: bool, compile: str = "auto") -> Iterator[dict[str, Any]]:
    """124 million parameters at 1024 tokens."""
    import gpt3_small

    context, batch = (32, 2) if small else (1024, 64)
    config = gpt3_small.SMALL if small else gpt3_small.Config()
    config = dataclasses.replace(config, context=context)
    work = Work(
        lambda: gpt3_small.GPT(config),
        gpt3_small.loss_fn,
        adamw,
        lambda device: torch.randint(0, config.vocabulary, (batch, context + 1), device=device),
        batch * context,
        "tokens",
        580_000,
        clip_norm=1.0,
        compile=compile,
    )
    usual = compile == "auto"
    return compared(work, small, plain=PLAIN if usual else ())


def gpt2_whole(small: bool) -> Iterator[dict[str, Any]]:
    """The same, compiled in one piece: "auto" leaves head and loss eager."""
    return gpt2(small, compile="whole")


def resnet50(small: bool) -> Iterator[dict[str, Any]]:
    """Images that stay on the device."""
    size, batch = (32, 4) if small else (224, 256)

    def images(device: torch.device) -> Any:
        labels = torch.randint(0, 10, (batch,), device=device)
        return torch.randn(batch, 3, size, size, device=device), labels

    return compared(resnet_work(small, batch, images, 5500), small)


def bert_large(small: bool) -> Iterator[dict[str, Any]]:
    """335 million parameters at 384 tokens, 15 % of them masked."""
    import bert_large

    context, batch = (32, 2) if small else (384, 64)
    config = bert_large.SMALL if small else bert_large.Config()
    config = dataclasses.replace(config, context=context)
    masked = context * 15 // 100

    def texts(device: torch.device) -> Any:
        return {
            "tokens": torch.randint(0, config.vocabulary, (batch, context), device=device),
            "places": torch.rand(batch, context, device=device).topk(masked).indices,
            "words": torch.randint(0, config.vocabulary, (batch, masked), device=device),
        }

    make = functools.partial(bert_large.Bert, config)
    loss = bert_large.loss_fn
    return compared(Work(make, loss, adamw, texts, batch, "sequences", 560, clip_norm=1.0), small)


def resnet50_jpeg(small: bool) -> Iterator[dict[str, Any]]:
    """JPEG files of ImageNet's size, each decoded anew, from the file to the optimizer."""
    size, batch, count = (32, 4, 64) if small else (224, 256, 4096)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder), count)
        work = resnet_work(small, batch, lambda device: None, 5000)
        own = flatout.image_loader(folder, batch, size=size, cache=False)
        workers = 0 if small else os.cpu_count() or 1
        loaders = {
            "flatout": forever(own),
            "eager": usual_loader(Path(folder), batch, size, min(4, workers)),
            "expert": usual_loader(Path(folder), batch, size, workers),
        }
        for figures in compared(work, small, loaders):
            figures["loader"] = dict(own.notes)
            yield figures
        alone = rate(lambda: next(loaders["flatout"]), batch, flatout.device(), small)
        yield {**figures, "loader_alone_per_s": alone}


PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "gpt2": gpt2,
    "resnet50": resnet50,
    "bert_large": bert_large,
    "resnet50_jpeg": resnet50_jpeg,
    "gpt2_whole": gpt2_whole,
}


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), **options)


def resnet_work(small: bool, batch: int, images: Callable[..., Any], goal: float) -> Work:
    import resnet50 as recipe

    config = recipe.SMALL if small else recipe.Config()

    def sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, **options)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return recipe.loss_fn(model(batch[0]), batch[1])  # type: ignore[no-any-return]

    make = functools.partial(recipe.ResNet, config)
    return Work(make, loss, sgd, images, batch, "images", goal, images=True)


def compared(
    work: Work,
    small: bool,
    loaders: dict[str, Iterator[Any]] | None = None,
    plain: Collection[str] = PLAIN,
) -> Iterator[dict[str, Any]]:
    """The figures of flatout, then with those of the plain loop, then with the expert's."""
    figures: dict[str, Any] = {"unit": work.unit, "goal": work.goal}
    for way in ("flatout", *plain):
        with clean():
            torch.manual_seed(0)
            device = flatout.device()
            model = work.model().to(device)
            if way == "flatout":
                step, notes = own_step(work, model)
            else:
                step, notes = plain_step(work, model, way == "expert"), dict
            batch = work.batch(device)
            fetch = (lambda way=way: next(loaders[way])) if loaders else (lambda batch=batch: batch)
            figures[way] = measured(step, fetch, work.amount, device, small) | notes()
            del model, step, notes, batch, fetch
        if way != "flatout":
            figures[f"to_{way}"] = round(figures["flatout"]["per_s"] / figures[way]["per_s"], 2)
        yield figures
    figures["share_of_goal"] = round(figures["flatout"]["per_s"] / work.goal, 3)
    yield figures


@contextlib.contextmanager
def clean() -> Iterator[None]:
    """Leave settings and memory to the next as they were."""
    search, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = search
        torch.set_float32_matmul_precision(precision)
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def own_step(work: Work, model: nn.Module) -> tuple[Callable[[Any], Tensor], Callable[[], Any]]:
    """`flatout.train_step`, everything chosen by itself; on the CPU no compiler."""

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return work.loss(model, batch)

    device = next(model.parameters()).device
    options: dict[str, Any] = {"compile": work.compile, "precision": "bf16"}
    if device.type == "cpu":
        options = {"compile": False}
    optimizer = work.optimizer(model.parameters())
    step = flatout.train_step(model, loss_fn, optimizer, clip_norm=work.clip_norm, **options)
    batch = work.batch(device)

    def notes() -> dict[str, Any]:
        found = {"notes": dict(step.notes)}
        return found if batch is None else found | {"kernels": kernels(lambda: step(batch), device)}

    return step, notes


def plain_step(work: Work, model: nn.Module, expert: bool) -> Callable[[Any], Tensor]:
    """The loop by hand, as it is usually written or as an expert has it."""
    device = next(model.parameters()).device
    if expert:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        if work.images:
            model = model.to(memory_format=torch.channels_last)
    optimizer = work.optimizer(model.parameters(), **PLAIN["expert" if expert else "eager"])

    def forward(batch: Any) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return work.loss(model, batch)

    run = torch.compile(forward) if expert and device.type == "cuda" else forward

    def step(batch: Any) -> Tensor:
        if expert and work.images:
            batch = (batch[0].to(memory_format=torch.channels_last), batch[1])
        loss = run(batch)
        loss.backward()
        if work.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), work.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def measured(
    step: Callable[[Any], Tensor],
    batch: Callable[[], Any],
    amount: int,
    device: torch.device,
    small: bool,
) -> dict[str, Any]:
    """The rate of `step`, once it is compiled and recorded."""
    began = time.perf_counter()
    for _ in range(3 if small else 12):
        loss = step(batch())
    first = float(loss)
    start_s = time.perf_counter() - began
    found = rate(lambda: step(batch()), amount, device, small)
    return {
        "per_s": found,
        "start_s": round(start_s, 1),
        "losses": [round(first, 4), round(float(step(batch())), 4)],
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def kernels(run: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """The ten kernels that take most of the device's time: name -> share; empty on the CPU."""
    if device.type != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(3):
            run()
        wait(device)
    times = {
        event.key[:80]: event.self_device_time_total
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    }
    total = sum(times.values()) or 1.0
    most = sorted(times, key=lambda name: -times[name])[:10]
    return {name: round(times[name] / total, 3) for name in most}


def rate(run: Callable[[], Any], amount: int, device: torch.device, small: bool) -> float:
    """Median over windows of some seconds, the device awaited at both ends."""
    seconds = 0.05 if small else WINDOW_S
    rates = []
    for _ in range(WINDOWS):
        wait(device)
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(1 if small else 5):
                run()
                calls += 1
            wait(device)  # else the host would run ahead by a whole window
        rates.append(calls * amount / (time.perf_counter() - began))
    return round(statistics.median(rates), 1)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Files of a folder per class: a random region, scaled with Pillow."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import numpy as np
        from PIL import Image

        with Image.open(self.files[index]) as file:
            picture = file.convert("RGB")
        width, height = picture.size
        side = min(width, height) * random.uniform(0.3, 1.0)
        left, top = random.uniform(0, width - side), random.uniform(0, height - side)
        box = (left, top, left + side, top + side)
        small = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)
        return pixels.float().sub_(120).div_(60), int(self.files[index].parent.name)


def usual_loader(folder: Path, batch: int, size: int, workers: int) -> Iterator[Any]:
    """torch's own DataLoader over the pictures, batches on the device."""
    loader = torch.utils.data.DataLoader(
        Pictures(folder, size),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
    )
    device = flatout.device()
    for images, labels in forever(loader):
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def write_pictures(folder: Path, count: int) -> None:
    """Pictures of ImageNet's usual size, 500 x 375, with detail so that they take 100 KB."""
    for index in range(10):
        (folder / str(index)).mkdir()
    with Pool() as pool:
        pool.map(write_picture, [(str(folder), index) for index in range(count)], chunksize=32)


def write_picture(place: tuple[str, int]) -> None:
    import numpy as np
    from PIL import Image

    folder, index = place
    rng = np.random.default_rng(index)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = (smooth + rng.normal(0, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
    path = Path(folder) / str(index % 10) / f"{index:05d}.jpg"
    Image.fromarray(noisy).save(path, "JPEG", quality=90)


if __name__ == "__main__":
    main()
