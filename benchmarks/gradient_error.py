"""How far bfloat16 turns the gradient of the images example, beside the noise of its batches.

The numbers behind the Guard's limits: at the start, and after some steps of training; with a loss
that was changed on purpose (label smoothing, a factor) for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

IMAGES = Path(__file__).parent.parent / "examples" / "images"
BATCHES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[0, 15, 30])
    arguments = parser.parse_args()
    sys.path.insert(0, str(IMAGES))
    from resnet import MODELS
    from train import Pictures

    random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(Pictures(IMAGES / "data", "train", 96), 32, shuffle=True, drop_last=True)
    batches = list(itertools.islice(iter(loader), BATCHES))
    model = MODELS["resnet26-small"](classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    figures, taken = {}, 0
    for steps in arguments.steps:
        for images, labels in itertools.islice(iter(loader), steps - taken):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        taken = steps
        figures[f"after_{steps}_steps"] = compared(model, batches)
    record.write("gradient_error", figures)


def compared(model: Any, batches: list[Any]) -> dict[str, dict[str, float]]:
    """Error beside the batch noise, and length, of each changed gradient."""
    plain = gradients(model, batches, contextlib.nullcontext)
    others = {
        "bf16": gradients(model, batches, lambda: torch.autocast("cpu", torch.bfloat16)),
        "label_smoothing_0.4": gradients(model, batches, contextlib.nullcontext, smoothing=0.4),
        "loss_times_1.2": gradients(model, batches, contextlib.nullcontext, factor=1.2),
    }
    count = range(len(plain))
    pairs = [(i, j) for i in count for j in count if i != j]
    noise = sum(float((plain[i] - plain[j]).norm() / plain[i].norm()) for i, j in pairs)
    noise /= len(pairs)
    return {
        name: {
            "error_of_batch_noise": round(
                max(float((g[i] - plain[i]).norm() / plain[i].norm()) for i in count) / noise, 3
            ),
            "length": round(
                (sum(float(x @ x) for x in g) / sum(float(x @ x) for x in plain)) ** 0.5, 3
            ),
        }
        for name, g in others.items()
    }


def gradients(
    model: Any,
    batches: list[Any],
    context: Callable[[], Any],
    smoothing: float = 0.0,
    factor: float = 1.0,
) -> list[Any]:
    """One gradient per batch, at the same weights."""
    found = []
    for images, labels in batches:
        model.zero_grad()
        with context():
            output = model(images)
        loss = factor * F.cross_entropy(output.float(), labels, label_smoothing=smoothing)
        loss.backward()
        found.append(torch.cat([p.grad.flatten().double() for p in model.parameters()]))
    return found


if __name__ == "__main__":
    main()
