"""Instrument recognition from log spectrograms, computed for whole batches."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LogSpectrum(nn.Module):
    def __init__(self, size=256, hop=128):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))

    def forward(self, wave):
        s = torch.stft(wave, self.size, self.hop, window=self.window, return_complex=True)
        return torch.log1p(s.abs().square()).unsqueeze(1)


class SpecMask(nn.Module):
    """Blanks a band of frequencies and a stretch of time in training."""

    def forward(self, s):
        if not self.training:
            return s
        f, t = s.shape[2:]
        a, b = int(torch.randint(0, f - 12, ())), int(torch.randint(0, t - 4, ()))
        s = s.clone()
        s[:, :, a : a + 12] = 0
        s[:, :, :, b : b + 4] = 0
        return s


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())


def instruments(batch, n=4096, rate=8000):
    t = torch.arange(n) / rate
    y = torch.randint(0, 5, (batch,))
    f = 120 + 300 * torch.rand(batch, 1, 1)
    k = torch.arange(1, 7)[:, None]
    amplitude = torch.exp(-0.3 * (y[:, None, None] + 1) * k)
    return (amplitude * torch.sin(2 * math.pi * f * k * t)).sum(1) + 0.1 * torch.randn(batch, n), y


def main():
    torch.manual_seed(0)
    waves, labels = instruments(1200)
    model = nn.Sequential(
        LogSpectrum(),
        SpecMask(),
        conv(1, 24),
        conv(24, 48),
        conv(48, 96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 5),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(4):
        model.train()
        for pick in torch.randperm(1000).split(32):
            loss = F.cross_entropy(model(waves[pick]), labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            hit = (model(waves[1000:]).argmax(1) == labels[1000:]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {hit:.3f}")


if __name__ == "__main__":
    main()
