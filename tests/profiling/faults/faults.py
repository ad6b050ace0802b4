"""A small training on the CPU, sound as it is, with the faults that `--fault` names.

python faults.py [--fault NAME[,NAME...]]
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, LENGTH, WIDTH, HIDDEN = 4, 128, 192, 768
RECORDS = 64
STEPS = 3000


class Samples(Dataset):
    """Sequences of vectors from one file, read into memory."""

    def __init__(self, path, length, faults):
        self.length, self.faults = length, faults
        size = RECORDS * LENGTH * WIDTH
        self.data = torch.from_file(path, size=size).view(RECORDS, LENGTH, WIDTH)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        sample, label = self.data[index % RECORDS], index % 10
        if "no-workers" in self.faults:
            decode(seconds=0.008)
        if "each-sample" in self.faults:
            for row in range(LENGTH):
                sample = sample - sample[row].mean()  # fault: each-sample
        return sample, label


def decode(seconds):
    """As a decoder written in Python does: one core, all the time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Model(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.body = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
        self.head = nn.Linear(HIDDEN, 10)
        many = 300 if "optimizer" in faults else 0
        self.scales = nn.ParameterList([torch.zeros(WIDTH) for _ in range(many)])

    def forward(self, x):
        if "mask" in self.faults:
            x = x * torch.tensor([[float(i % 7 > 0)] * WIDTH for i in range(LENGTH)])  # fault: mask
        if len(self.scales):
            x = x + torch.stack(list(self.scales)).sum(0)
        if "python" in self.faults:
            return self.head(self.recurrent(x))
        return self.head(self.body(x).mean(dim=1))

    def recurrent(self, x):
        few = x[:, :, :4]
        state = torch.zeros_like(few[:, 0])
        for step in range(LENGTH):
            state = torch.tanh(state * 0.9 + few[:, step])  # fault: python
        return F.pad(state, (0, HIDDEN - 4))


class Node:
    """Holds itself: only the garbage collector can free it."""

    def __init__(self):
        self.me = self


def make_loader(faults, path):
    length = BATCH * (10 if "restarts" in faults else STEPS)
    samples = Samples(path, length, faults)
    if "restarts" in faults:
        return DataLoader(samples, BATCH, num_workers=1)
    return DataLoader(samples, BATCH)


def train(faults, path):
    torch.manual_seed(0)
    if "threads" in faults:
        torch.set_num_threads(24)
    loader, model = make_loader(faults, path), Model(faults)
    if "optimizer" in faults:
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    total, steps = 0.0, 0
    while steps < STEPS:
        for x, y in loader:  # fault: no-workers, restarts
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # fault: optimizer
            steps += 1
            if "item" in faults:
                total += loss.item()
                print(f"step {steps} loss {loss}")
            if "gc" in faults:
                nodes = [Node() for _ in range(30_000)]
                del nodes
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.bin"
        torch.randn(RECORDS * LENGTH * WIDTH).numpy().tofile(file)
        train(parser.parse_args().fault, str(file))
