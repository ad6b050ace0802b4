"""tcn_signals.py, by hand: signals made once, 2-D convolutions, channels_last, bf16."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

LENGTH = 512
CLASSES = 6


def vibration(index, t):
    rng = np.random.default_rng(index)
    label = index % CLASSES
    speed = rng.uniform(8, 16)
    signal = np.zeros((3, LENGTH))
    for channel in range(3):
        for harmonic in range(1, 6):
            strength = 1.0 / harmonic + (1.5 if harmonic == label else 0.0)
            phase = rng.uniform(0, 2 * np.pi)
            signal[channel] += strength * np.sin(2 * np.pi * speed * harmonic * t + phase)
        if label == 0:
            signal[channel] += 2 * (np.sin(2 * np.pi * speed * t) > 0.95)
    signal += rng.normal(0, 1.0, size=signal.shape)
    return (signal - signal.mean(1, keepdims=True)) / signal.std(1, keepdims=True)


class Cache:
    """Each signal is a function of its number: made when first asked for, then kept."""

    def __init__(self, n=4096):
        self.t = np.linspace(0, 1, LENGTH)
        self.signals = torch.empty(n, 3, LENGTH)
        self.made = torch.zeros(n, dtype=torch.bool)
        self.labels = torch.arange(n) % CLASSES

    def batch(self, index):
        for i in index[~self.made[index]].tolist():
            self.signals[i] = torch.from_numpy(vibration(i, self.t))
            self.made[i] = True
        return self.signals[index], self.labels[index]


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class CausalConv(nn.Module):
    """Pads on the left alone, so that nothing is computed to be cut off.

    Signals are images one pixel high: 2-D convolutions have the better kernels.
    """

    def __init__(self, n_in, n_out, kernel, dilation):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = weight_norm(nn.Conv2d(n_in, n_out, (1, kernel), dilation=(1, dilation)))

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (self.pad, 0)))


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel, dilation, dropout=0.1):
        super().__init__()
        self.net = nn.Sequential(
            CausalConv(n_in, n_out, kernel, dilation),
            nn.ReLU(),
            nn.Dropout(dropout),
            CausalConv(n_out, n_out, kernel, dilation),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.downsample = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else None
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
        x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        return self.head(self.tcn(x)[:, :, 0, -64:].mean(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    data = Cache()
    model = TCN().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    step = 0
    while step < args.steps:
        for index in shuffled(len(data.labels)).split(32):
            signal, label = data.batch(index)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(signal)
            loss = nn.functional.cross_entropy(logits.float(), label)
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
