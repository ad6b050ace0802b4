import math

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

RATE = 8000


def hz_to_mel(f):
    return 2595 * math.log10(1 + f / 700)


def mel_to_hz(m):
    return 700 * (10 ** (m / 2595) - 1)


def filter_bank(bins, bands):
    edges = np.linspace(hz_to_mel(50), hz_to_mel(RATE / 2), bands + 2)
    centres = [mel_to_hz(m) * (bins - 1) * 2 / RATE for m in edges]
    bank = np.zeros((bands, bins), dtype=np.float32)
    for b in range(bands):
        low, mid, high = centres[b : b + 3]
        for k in range(bins):
            if low < k <= mid:
                bank[b, k] = (k - low) / (mid - low)
            elif mid < k < high:
                bank[b, k] = (high - k) / (high - mid)
    return bank


class Chirps(Dataset):
    def __init__(self, n=1600, length=2000, frame=256, hop=100):
        rng = np.random.default_rng(0)
        t = np.arange(length) / RATE
        self.label = rng.integers(0, 3, n)
        slope = np.array([-400, 0, 400])[self.label]
        start = rng.uniform(800, 1200, n)
        phase = 2 * np.pi * (start[:, None] * t + slope[:, None] * t**2)
        self.wave = (np.sin(phase) + 0.3 * rng.normal(size=(n, length))).astype(np.float32)
        self.frame, self.hop = frame, hop

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        wave = self.wave[i]
        frames = np.lib.stride_tricks.sliding_window_view(wave, self.frame)[:: self.hop]
        window = np.hanning(self.frame).astype(np.float32)
        power = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float32) ** 2
        bank = filter_bank(power.shape[1], 16)
        return torch.from_numpy(np.log(power @ bank.T + 1e-5)), int(self.label[i])


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(16, 160, num_layers=2, batch_first=True)
        self.out = nn.Linear(160, 3)

    def forward(self, x):
        return self.out(self.gru(x)[0].mean(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Chirps(), batch_size=32, shuffle=True)
    model = Rnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item())
