"""Multi-horizon quantile forecast of many retail series with a causal convolution network."""
import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class Settings(NamedTuple):
    series: int = 400
    length: int = 900
    context: int = 96
    horizon: int = 14
    quantiles: tuple = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
    channels: int = 32
    batch: int = 64
    steps: int = 400
    lr: float = 1e-3


def generate(s):
    t = torch.arange(s.length, dtype=torch.float32)
    level = torch.rand(s.series, 1) * 3 + 1
    week = torch.sin(2 * math.pi * t / 7 + torch.rand(s.series, 1) * 6) * torch.rand(s.series, 1)
    year = torch.cos(2 * math.pi * t / 365 + torch.rand(s.series, 1) * 6)
    noise = torch.randn(s.series, s.length) * 0.2
    y = level + week + 0.5 * year + noise
    return (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True)


class CausalBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.skip = nn.Conv1d(c, c, 1)

    def forward(self, x):
        h = F.gelu(self.conv(F.pad(x, (self.pad, 0))))
        return x + self.skip(h)


class QuantileHead(nn.Module):
    def __init__(self, c, horizon, n_q):
        super().__init__()
        self.horizon, self.n_q = horizon, n_q
        self.net = nn.Sequential(nn.Linear(c, 256), nn.GELU(), nn.Linear(256, horizon * n_q))

    def forward(self, h):
        out = self.net(h)
        return out.view(*h.shape[:-1], self.horizon, self.n_q)


class Forecaster(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.stem = nn.Conv1d(1, s.channels, 1)
        self.blocks = nn.ModuleList(CausalBlock(s.channels, 2 ** i) for i in range(5))
        self.head = QuantileHead(s.channels, s.horizon, len(s.quantiles))

    def forward(self, x):
        h = self.stem(x.unsqueeze(1))
        for b in self.blocks:
            h = b(h)
        states = h.transpose(1, 2)
        forecasts = self.head(states)
        return forecasts[:, -1]


def pinball(pred, target, q):
    err = target.unsqueeze(-1) - pred
    return torch.maximum(q * err, (q - 1) * err).mean()


def windows(y, s, first, last):
    span = torch.arange(s.context + s.horizon)
    while True:
        rows = torch.randint(0, s.series, (s.batch,))
        starts = torch.randint(first, last - s.context - s.horizon, (s.batch,))
        w = y[rows.unsqueeze(1), starts.unsqueeze(1) + span]
        yield w[:, :s.context], w[:, s.context:]


def main():
    s = Settings()
    torch.manual_seed(23)
    y = generate(s)
    train, valid = windows(y, s, 0, 700), windows(y, s, 600, 900)
    model = Forecaster(s)
    q = torch.tensor(s.quantiles)
    opt = torch.optim.AdamW(model.parameters(), lr=s.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, s.steps)
    mean_loss = 0.0
    for step in range(1, s.steps + 1):
        x, target = next(train)
        loss = pinball(model(x), target, q)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        mean_loss += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d} pinball {mean_loss / 50:.4f}")
            mean_loss = 0.0
        if step % 200 == 0:
            model.eval()
            with torch.no_grad():
                v = sum(pinball(model(a), b, q).item() for a, b in (next(valid) for _ in range(4))) / 4
            model.train()
            print(f"          valid  {v:.4f}")


if __name__ == "__main__":
    main()
