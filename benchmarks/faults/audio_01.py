import argparse
import os
import tempfile

import torch
from torch import nn


def tones(n, sr=4000, seconds=0.5, classes=8):
    t = torch.arange(int(sr * seconds)) / sr
    y = torch.randint(0, classes, (n,))
    base = 110.0 * 2 ** (y.float() / 4)
    wave = sum(
        torch.rand(n, 1) * torch.sin(2 * torch.pi * base[:, None] * k * t) for k in (1, 2, 3)
    )
    return (wave + 0.2 * torch.randn_like(wave)).unsqueeze(1), y


class M5(nn.Module):
    def __init__(self, classes, c=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, c, 40, stride=8),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(c, c, 3, padding=1),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.Conv1d(c, 2 * c, 3, padding=1),
            nn.BatchNorm1d(2 * c),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(2 * c, 2 * c, 3, padding=1),
            nn.BatchNorm1d(2 * c),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(2 * c, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean(-1))


class RunLog:
    def __init__(self, folder):
        self.f = open(os.path.join(folder, "metrics.txt"), "a")

    def put(self, name, step, value):
        self.f.write(f"{name}\t{step}\t{value:.6f}\n")
        self.f.flush()
        os.fsync(self.f.fileno())

    def close(self):
        self.f.close()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--batch", type=int, default=128)
    return p.parse_args()


if __name__ == "__main__":
    args = parse()
    torch.manual_seed(0)
    waves, labels = tones(2048)
    model = M5(8)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(folder)
        for step in range(args.steps):
            pick = torch.randint(0, len(waves), (args.batch,))
            logits = model(waves[pick])
            loss = nn.functional.cross_entropy(logits, labels[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            acc = (logits.argmax(1) == labels[pick]).float().mean()
            log.put("loss", step, loss.item())
            log.put("acc", step, acc.item())
            log.put("lr", step, opt.param_groups[0]["lr"])
            log.put("batch", step, args.batch)
        log.close()
        print("final loss", loss.item())
