"""Temporal convolutional network: which kind of fault does a vibration signal show?"""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

LENGTH = 512
CLASSES = 6


class Vibrations(Dataset):
    """Signals made up when asked for, as from a simulator."""

    def __init__(self, n=4096):
        self.n = n
        self.t = np.linspace(0, 1, LENGTH)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        label = index % CLASSES
        speed = rng.uniform(8, 16)
        signal = np.zeros((3, LENGTH))
        for channel in range(3):
            for harmonic in range(1, 6):
                strength = 1.0 / harmonic + (1.5 if harmonic == label else 0.0)
                phase = rng.uniform(0, 2 * np.pi)
                signal[channel] += strength * np.sin(2 * np.pi * speed * harmonic * self.t + phase)
            if label == 0:
                signal[channel] += 2 * (np.sin(2 * np.pi * speed * self.t) > 0.95)
        signal += rng.normal(0, 1.0, size=signal.shape)
        signal = (signal - signal.mean(1, keepdims=True)) / signal.std(1, keepdims=True)
        return torch.tensor(signal, dtype=torch.float32), label


class Chomp1d(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, : -self.size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel, dilation, dropout=0.1):
        super().__init__()
        pad = (kernel - 1) * dilation
        self.net = nn.Sequential(
            weight_norm(nn.Conv1d(n_in, n_out, kernel, padding=pad, dilation=dilation)),
            Chomp1d(pad),
            nn.ReLU(),
            nn.Dropout(dropout),
            weight_norm(nn.Conv1d(n_out, n_out, kernel, padding=pad, dilation=dilation)),
            Chomp1d(pad),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None
        self.relu = nn.ReLU()

    def forward(self, x):
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(self.net(x) + res)


class TCN(nn.Module):
    def __init__(self, channels=(32, 32, 48, 48, 64), kernel=5):
        super().__init__()
        layers = []
        n_in = 3
        for i, n_out in enumerate(channels):
            layers.append(TemporalBlock(n_in, n_out, kernel, 2**i))
            n_in = n_out
        self.tcn = nn.Sequential(*layers)
        self.head = nn.Linear(n_in, CLASSES)

    def forward(self, x):
        return self.head(self.tcn(x)[:, :, -64:].mean(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(Vibrations(), batch_size=32, shuffle=True)
    model = TCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < args.steps:
        for signal, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(signal), label)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
