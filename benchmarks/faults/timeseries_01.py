import csv
import math
import sys
import tempfile

import torch
from torch import nn

HORIZON = 24
HISTORY = 96


def series(n_series=200, length=1500):
    t = torch.arange(length).float()
    period = torch.rand(n_series, 1) * 40 + 12
    phase = torch.rand(n_series, 1) * 2 * math.pi
    trend = torch.randn(n_series, 1) * 1e-3
    return (
        torch.sin(2 * math.pi * t / period + phase)
        + trend * t
        + 0.1 * torch.randn(n_series, length)
    )


class NBeatsBlock(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(HISTORY, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.back = nn.Linear(width, HISTORY)
        self.fore = nn.Linear(width, HORIZON)

    def forward(self, x):
        h = self.net(x)
        return self.back(h), self.fore(h)


class NBeats(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList([NBeatsBlock() for _ in range(blocks)])

    def forward(self, x):
        total = 0
        for block in self.blocks:
            back, fore = block(x)
            x = x - back
            total = total + fore
        return total


def dump_forecast(writer, step, rows, forecast, target):
    for r, f, t in zip(rows.tolist(), forecast.tolist(), target.tolist()):
        for h in range(HORIZON):
            writer.writerow([step, r, h, f"{f[h]:.6f}", f"{t[h]:.6f}", f"{f[h] - t[h]:+.6f}"])


def main():
    data = series()
    model = NBeats()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=True) as out:
        writer = csv.writer(out)
        writer.writerow(["step", "series", "h", "forecast", "target", "error"])
        for step in range(90):
            rows = torch.randint(0, data.shape[0], (256,))
            start = torch.randint(0, data.shape[1] - HISTORY - HORIZON, (256, 1))
            window = data[rows[:, None], start + torch.arange(HISTORY + HORIZON)]
            x, y = window[:, :HISTORY], window[:, HISTORY:]
            pred = model(x)
            loss = loss_fn(pred, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            dump_forecast(writer, step, rows, pred.detach(), y)
            if step % 30 == 0:
                sys.stdout.write("step %d loss %.5f\n" % (step, loss.item()))


if __name__ == "__main__":
    main()
