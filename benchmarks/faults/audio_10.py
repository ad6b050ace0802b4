import math
import tempfile
from pathlib import Path

import torch
from torch import nn


def make(n, sr=4000):
    t = torch.arange(sr // 2) / sr
    y = torch.randint(0, 5, (n,))
    f = 200.0 * (y + 1)[:, None] * (1 + 0.02 * torch.randn(n, 1))
    return torch.sin(2 * math.pi * f * t) + 0.4 * torch.randn(n, len(t)), y


def logspec(w):
    s = torch.stft(w, 256, 64, window=torch.hann_window(256), return_complex=True)
    return (s.abs() + 1e-4).log()


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(129, 96, 3, padding=1), nn.ReLU(), nn.Conv1d(96, 96, 3, padding=1), nn.ReLU()
        )
        self.gru = nn.GRU(96, 96, batch_first=True)
        self.out = nn.Linear(96, 5)

    def forward(self, s):
        h, _ = self.gru(self.conv(s).transpose(1, 2))
        return self.out(h.mean(1))


def main():
    torch.manual_seed(0)
    waves, y = make(1600)
    specs = logspec(waves)
    net = CRNN()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as d:
        for epoch in range(4):
            for i in torch.randperm(len(specs)).split(80):
                loss = nn.functional.cross_entropy(net(specs[i]), y[i])
                opt.zero_grad()
                loss.backward()
                opt.step()
            torch.save(net.state_dict(), Path(d) / f"epoch{epoch}.pt")
            print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    main()
