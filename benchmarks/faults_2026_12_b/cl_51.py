"""Continual learning on a stream of rotated-pattern tasks with experience replay."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE, CLASSES = 32, 8


class PatternStream:
    """Each task shows the same eight gratings under another rotation and tint."""

    def __init__(self, tasks, seed):
        self.rng = np.random.default_rng(seed)
        self.tasks = tasks
        c = np.linspace(-1, 1, SIDE, dtype=np.float32)
        self.yy, self.xx = np.meshgrid(c, c, indexing="ij")
        self.tint = self.rng.uniform(0.4, 1.0, (tasks, 3)).astype(np.float32)

    def batch(self, task, n):
        label = self.rng.integers(0, CLASSES, n)
        angle = math.pi * (label / CLASSES + 0.3 * task) + self.rng.normal(0, 0.05, n)
        phase = self.rng.uniform(0, 2 * math.pi, n)
        freq = 6.0 + 2.0 * (label % 3)
        u = np.cos(angle)[:, None, None] * self.xx + np.sin(angle)[:, None, None] * self.yy
        wave = np.sin(freq[:, None, None] * u + phase[:, None, None])
        img = wave[:, None] * self.tint[task][:, None, None] + self.rng.normal(0, 0.3, (n, 3, SIDE, SIDE))
        return img.astype(np.float32), label.astype(np.int64)


class Memory:
    """Keeps the most recent examples of the stream."""

    def __init__(self, capacity, seed):
        self.capacity = capacity
        self.rng = np.random.default_rng(seed)
        self.images = np.zeros((0, 3, SIDE, SIDE), dtype=np.float32)
        self.labels = np.zeros((0,), dtype=np.int64)

    def __len__(self):
        return len(self.labels)

    def add(self, images, labels):
        self.images = np.concatenate([self.images, images])[-self.capacity :]
        self.labels = np.concatenate([self.labels, labels])[-self.capacity :]

    def draw(self, n):
        pick = self.rng.integers(0, len(self), n)
        return self.images[pick], self.labels[pick]


class SmallConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(24, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(),
        )
        self.head = nn.Linear(64 * 16, CLASSES)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        hit = (model(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    model.train()
    return float(hit)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tasks", type=int, default=5)
    ap.add_argument("--steps-per-task", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--replay", type=int, default=64)
    ap.add_argument("--capacity", type=int, default=5000)
    args = ap.parse_args()
    torch.manual_seed(0)

    stream = PatternStream(args.tasks, seed=0)
    memory = Memory(args.capacity, seed=1)
    for _ in range(args.capacity // 500):
        memory.add(*stream.batch(0, 500))
    exams = [stream.batch(t, 200) for t in range(args.tasks)]
    model = SmallConv()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    for task in range(args.tasks):
        for step in range(args.steps_per_task):
            new_x, new_y = stream.batch(task, args.batch)
            old_x, old_y = memory.draw(args.replay)
            x = torch.from_numpy(np.concatenate([new_x, old_x]))
            y = torch.from_numpy(np.concatenate([new_y, old_y]))
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            memory.add(new_x, new_y)
            if step % 45 == 0:
                print(f"task {task} step {step:3d}  loss {loss.item():.4f}")
        scores = [accuracy(model, *exams[t]) for t in range(task + 1)]
        print(f"after task {task}: " + " ".join(f"{s:.2f}" for s in scores))


if __name__ == "__main__":
    main()
