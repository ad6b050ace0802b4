import os

import numpy as np
import psutil
import torch
import torch.nn as nn


class MemoryWatch:
    def __init__(self):
        self.process = psutil.Process(os.getpid())
        self.peak = 0
        self.rows = []

    def sample(self, step):
        full = self.process.memory_full_info()
        self.peak = max(self.peak, full.uss)
        self.rows.append((step, full.rss, full.uss, full.swap))


class Sunspots(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.rnn = nn.LSTM(4, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 4)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h)


def walk(n=20000):
    rng = np.random.default_rng(8)
    x = np.cumsum(rng.normal(size=(n, 4)), 0)
    x = (x - x.mean(0)) / x.std(0)
    return torch.from_numpy(x.astype(np.float32))


def windows(x, length, batch, steps):
    for _ in range(steps):
        at = torch.randint(0, len(x) - length - 1, (batch, 1)) + torch.arange(length + 1)
        w = x[at]
        yield w[:, :-1], w[:, 1:]


if __name__ == "__main__":
    torch.manual_seed(0)
    watch = MemoryWatch()
    model = Sunspots()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(windows(walk(), 24, 32, 180)):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watch.sample(step)
        if step % 60 == 0:
            print(step, loss.item(), watch.peak >> 20, "MiB")
