import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import math

import torch
from torch import nn


class Spectrogram(nn.Module):
    def __init__(self, n_fft=256, hop=64):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        s = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return (s.abs() + 1e-4).log().unsqueeze(1)


def chirps(n, classes=6, sr=4000):
    t = torch.arange(sr // 2) / sr
    y = torch.randint(0, classes, (n,))
    rate = (y.float()[:, None] - classes / 2) * 400
    start = torch.rand(n, 1) * 300 + 1000
    return torch.sin(2 * math.pi * (start * t + rate * t**2 / 2)) + 0.3 * torch.randn(n, len(t)), y


class Model(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.spec = Spectrogram()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=(2, 1), padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.out = nn.Linear(64, classes)

    def forward(self, w):
        return self.out(self.body(self.spec(w)))


waves, labels = chirps(1024)
model = Model()
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=80)
for it in range(80):
    pick = torch.randint(0, len(waves), (32,))
    loss = nn.functional.cross_entropy(model(waves[pick]), labels[pick])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    scheduler.step()
    if it % 16 == 0:
        print(f"it={it} loss={loss.item():.4f} lr={scheduler.get_last_lr()[0]:.5f}")
