"""A small training on the CPU, sound as it is, with the faults of host time that `--fault` names.

python host_faults.py [--fault NAME[,NAME...]] [--steps STEPS]

What is planted takes several times as long as all else of a step. Its line ends in a remark with
its name, by which the tests find it.
"""

import argparse
import os
import subprocess
import tempfile
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, CLASSES, SIDE = 16, 128, 10, 8


class Pictures(Dataset):
    """Small pictures in memory; large ones in files with the fault jpeg."""

    def __init__(self, folder, steps, faults):
        self.folder, self.steps, self.faults = folder, steps, faults
        drawn = np.random.default_rng(0)
        self.pixels = torch.from_numpy(drawn.random((64, 3 * SIDE * SIDE), dtype=np.float32))
        for number in range(8 if "jpeg" in faults else 0):
            picture = Image.fromarray(drawn.integers(0, 255, (400, 400, 3), dtype=np.uint8))
            picture.save(os.path.join(folder, f"{number}.jpg"))

    def __len__(self):
        return BATCH * self.steps

    def __getitem__(self, index):
        if "jpeg" in self.faults:
            return self.decoded(index), index % CLASSES
        return self.pixels[index % 64], index % CLASSES

    def decoded(self, index):
        picture = Image.open(os.path.join(self.folder, f"{index % 8}.jpg"))
        picture = picture.convert("RGB")  # fault: jpeg
        small = np.asarray(picture.resize((SIDE, SIDE)), dtype=np.float32) / 255
        return torch.from_numpy(small.reshape(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3 * SIDE * SIDE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.layers(x))


def neighbours(step):
    """A band that changes from step to step, as a list of lists."""
    width = 2 + step % 5
    band = []
    for i in range(220):
        band.append([])
        for j in range(220):
            band[i].append(float(abs(i - j) <= width and (i + j) % 3 != step % 3))  # fault: mask
    return len(band)


def filled(step):
    """The same, element by element in a tensor."""
    band = torch.zeros(60, 60)
    for i in range(60):
        for j in range(30):  # fault: elements
            band[i, (i + j + step) % 60] = 1.0
    return band


def clip(parameters, limit):
    """Norms read one by one, for each of many small groups."""
    total = 0.0
    for _ in range(150):
        for p in parameters:
            total += p.grad[0].norm().item() ** 2  # fault: clip
    return min(1.0, limit / (total**0.5 + 1e-6))


def positions(length, width):
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(width)[None] / width)
    return torch.sin(angles)  # fault: constant


def watch(ended):
    """As a monitor does that polls without a pause."""
    seen = 0
    while not ended.is_set():
        seen = sum(number % 7 for number in range(2000))  # fault: thread
    return seen


def report(predicted, y, faults):
    if "metrics" in faults:
        for average in ("macro", "micro", "weighted"):
            f1_score(y.numpy(), predicted.numpy(), average=average)  # fault: metrics
    if "sleep" in faults:
        time.sleep(0.02)  # fault: sleep
    if "process" in faults:
        subprocess.run(["sleep", "0.02"], check=True)  # fault: process


def update(model, optimizer, x, y, faults):
    if "closure" not in faults:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if "clip" in faults:
            clip(list(model.parameters()), 1.0)
        optimizer.step()
        return loss

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.repeat(30, 1)), y.repeat(30))
        loss.backward()
        return loss

    return optimizer.step(closure)


def prepared(x, step, faults):
    if "mask" in faults:
        neighbours(step)
    if "elements" in faults:
        x = x + filled(step).mean()
    if "constant" in faults:
        x = x + positions(24_000, 3 * SIDE * SIDE)[: len(x)]
    return x


def train(folder, steps, faults):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    predicted = torch.arange(BATCH) % CLASSES
    for step, (x, y) in enumerate(DataLoader(Pictures(folder, steps, faults), BATCH)):
        x = prepared(x, step, faults)
        loss = update(model, optimizer, x, y, faults)
        if step % 50 == 0:
            losses.append(loss.item())
        if "unread" in faults:
            spare = model(x.repeat(500, 1))  # noqa: F841  # fault: unread
        report(predicted, y, faults)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: set(text.split(",")))
    parser.add_argument("--steps", default=600, type=int)
    args = parser.parse_args()
    finished = threading.Event()
    if "thread" in args.fault:
        threading.Thread(target=watch, args=(finished,), name="monitor", daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        train(scratch, args.steps, args.fault)
    finished.set()
