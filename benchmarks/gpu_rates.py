"""Training rates of the recipes' models on one GPU, through `flatout.train_step`.

One part per process: `python gpu_rates.py <part>` prints its figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import torch

import flatout

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "recipes"))

WINDOWS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="tiny, to see that it runs")
    arguments = parser.parse_args()
    figures = PARTS[arguments.part](arguments.small)
    sys.stdout.write(json.dumps(figures) + "\n")


def resnet50(small: bool) -> dict[str, Any]:
    """Images a second, batches that stay on the device."""
    size, batch = (32, 4) if small else (224, 256)
    step = resnet_step(small)
    images = torch.randn(batch, 3, size, size, device=step.device)
    labels = torch.randint(0, 10, (batch,), device=step.device)
    return measured(step, lambda: (images, labels), batch, "images", 5500, small)


def resnet50_jpeg(small: bool) -> dict[str, Any]:
    """Images a second from JPEG files of ImageNet's size, each decoded anew."""
    size, batch, count = (32, 4, 64) if small else (224, 256, 4096)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder), count)
        loader = flatout.image_loader(folder, batch, size=size, cache=False)
        endless = forever(loader)
        step = resnet_step(small)
        figures = measured(step, lambda: next(endless), batch, "images", 5000, small)
        alone = rate(lambda: next(endless), batch, step.device, small)
        return {**figures, "loader_alone_per_s": alone, "loader": dict(loader.notes)}


def gpt2(small: bool) -> dict[str, Any]:
    """Tokens a second of 124 million parameters at 1024 tokens."""
    import gpt3_small

    context, batch = (32, 2) if small else (1024, 64)
    config = gpt3_small.SMALL if small else gpt3_small.Config()
    config = dataclasses.replace(config, context=context)
    model = gpt3_small.GPT(config).to(flatout.device())
    step = text_step(model, gpt3_small.loss_fn)
    tokens = torch.randint(0, config.vocabulary, (batch, context + 1), device=step.device)
    return measured(step, lambda: tokens, batch * context, "tokens", 580_000, small)


def bert_large(small: bool) -> dict[str, Any]:
    """Sequences a second of 335 million parameters at 384 tokens, 15 % of them masked."""
    import bert_large

    context, batch = (32, 2) if small else (384, 64)
    config = bert_large.SMALL if small else bert_large.Config()
    config = dataclasses.replace(config, context=context)
    model = bert_large.Bert(config).to(flatout.device())
    step = text_step(model, bert_large.loss_fn)
    masked = context * 15 // 100
    data = {
        "tokens": torch.randint(0, config.vocabulary, (batch, context), device=step.device),
        "places": torch.rand(batch, context, device=step.device).topk(masked).indices,
        "words": torch.randint(0, config.vocabulary, (batch, masked), device=step.device),
    }
    return measured(step, lambda: data, batch, "sequences", 560, small)


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "resnet50": resnet50,
    "resnet50_jpeg": resnet50_jpeg,
    "gpt2": gpt2,
    "bert_large": bert_large,
}


def resnet_step(small: bool) -> Any:
    import resnet50 as recipe

    config = recipe.SMALL if small else recipe.Config()
    model = recipe.ResNet(config).to(flatout.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return flatout.train_step(model, recipe.loss_fn, optimizer, **options(model))


def text_step(model: torch.nn.Module, loss_fn: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))
    return flatout.train_step(model, loss_fn, optimizer, clip_norm=1.0, **options(model))


def options(model: torch.nn.Module) -> dict[str, Any]:
    """Everything as it is chosen by itself; on the CPU no compiler, to see that it runs."""
    if next(model.parameters()).device.type == "cpu":
        return {"compile": False}
    torch.backends.cudnn.benchmark = True  # shapes do not change
    return {"precision": "bf16"}


def measured(
    step: Any, batch: Callable[[], Any], amount: int, unit: str, goal: float, small: bool
) -> dict[str, Any]:
    """The rate of `step`, once it is compiled and recorded, with what was chosen."""
    began = time.perf_counter()
    for _ in range(3 if small else 15):
        loss = step(batch())
    first = float(loss)
    start_s = time.perf_counter() - began
    found = rate(lambda: step(batch()), amount, step.device, small)
    return {
        f"{unit}_per_s": found,
        "goal": goal,
        "share_of_goal": round(found / goal, 3),
        "start_s": round(start_s, 1),
        "losses": [round(first, 4), round(float(step(batch())), 4)],
        "peak_bytes": flatout.memory.report(step.device).peak,
        "notes": dict(step.notes),
        "kernels": kernels(lambda: step(batch()), step.device),
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
    """Median over windows of about two seconds each, the device awaited at both ends."""
    seconds = 0.05 if small else 2.0
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
