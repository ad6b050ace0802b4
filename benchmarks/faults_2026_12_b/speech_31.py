"""Keyword spotting on generated tones in simulated rooms."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

RATE = 8000
CLASSES = 8


def room_response(rng, seconds):
    n = int(RATE * seconds)
    decay = np.exp(-np.arange(n) / (0.25 * n))
    tail = rng.standard_normal(n) * decay * 0.1
    tail[0] = 1.0
    return tail.astype(np.float32)


class Rooms:
    def __init__(self, count, seconds, seed):
        rng = np.random.default_rng(seed)
        self.responses = [room_response(rng, seconds) for _ in range(count)]

    def apply(self, wave, rng):
        response = self.responses[rng.integers(len(self.responses))]
        wet = np.convolve(wave, response)[:len(wave)]
        return wet / (np.abs(wet).max() + 1e-6)


class Keywords(Dataset):
    def __init__(self, n, rooms, seed):
        rng = np.random.default_rng(seed)
        self.rooms = rooms
        self.seed = seed
        self.labels = rng.integers(0, CLASSES, n)
        t = np.arange(RATE, dtype=np.float32) / RATE
        self.waves = np.empty((n, RATE), dtype=np.float32)
        for i, label in enumerate(self.labels):
            base = 150 + 60 * label + rng.uniform(-10, 10)
            sweep = base * t + 0.5 * (20 * (label % 3)) * t ** 2
            self.waves[i] = np.sin(2 * np.pi * sweep) + 0.4 * np.sin(4 * np.pi * sweep)
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        wave = self.rooms.apply(self.waves[i], self.rng)
        wave = np.roll(wave, self.rng.integers(-400, 400))
        noise = self.rng.standard_normal(RATE, dtype=np.float32)
        wave = wave + 0.05 * noise
        return torch.from_numpy(wave.astype(np.float32)), int(self.labels[i])


class LogSpectrum(nn.Module):
    def __init__(self, n_fft=256, hop=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.log1p(spec.abs())


class Spotter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.front = LogSpectrum()
        self.net = nn.Sequential(
            nn.Conv1d(129, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))

    def forward(self, wave):
        with torch.no_grad():
            feats = self.front(wave)
        return self.net(feats)


def evaluate(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for wave, label in loader:
            right += (model(wave).argmax(-1) == label).sum().item()
            total += len(label)
    model.train()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--reverb", type=float, default=0.3)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    rooms = Rooms(40, args.reverb, args.seed)
    train = DataLoader(Keywords(1920, rooms, 1), args.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Keywords(96, rooms, 2), 48)
    model = Spotter()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for i, (wave, label) in enumerate(train):
            loss = loss_fn(model(wave), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % 20 == 0:
                print(f"epoch {epoch} batch {i:3d} loss {loss.item():.4f}")
        print(f"epoch {epoch} accuracy {evaluate(model, valid):.3f}")


if __name__ == "__main__":
    main()
