"""Sound-event classification on raw audio with a TCN (dilated causal 1-D convolutions).

The clips are synthesised (8 classes of chirps, tones, pulses ...); the augmentation is done on the fly in the Dataset.
"""
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "sample_rate": 8000,
    "clip_len": 4096,
    "n_classes": 8,
    "n_train": 2560,
    "n_val": 320,
    "batch_size": 32,
    "channels": [32, 48, 48, 64, 64, 64],
    "kernel_size": 5,
    "lr": 2e-3,
    "weight_decay": 1e-4,
    "epochs": 3,
    "seed": 3,
}


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def synth_clip(label, rng, n, sr):
    t = np.arange(n) / sr
    f0 = rng.uniform(200, 900)
    if label == 0:      # steady tone
        x = np.sin(2 * np.pi * f0 * t)
    elif label == 1:    # rising chirp
        x = np.sin(2 * np.pi * (f0 * t + 900 * t ** 2))
    elif label == 2:    # falling chirp
        x = np.sin(2 * np.pi * ((f0 + 900) * t - 800 * t ** 2))
    elif label == 3:    # tremolo
        x = np.sin(2 * np.pi * f0 * t) * (0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(8, 16) * t))
    elif label == 4:    # vibrato
        x = np.sin(2 * np.pi * f0 * t + 8 * np.sin(2 * np.pi * rng.uniform(6, 12) * t))
    elif label == 5:    # square wave
        x = np.sign(np.sin(2 * np.pi * f0 * t))
    elif label == 6:    # pulses of noise
        x = rng.standard_normal(n) * (np.sin(2 * np.pi * rng.uniform(5, 10) * t) > 0.6)
    else:               # two tones
        x = np.sin(2 * np.pi * f0 * t) + np.sin(2 * np.pi * f0 * 1.5 * t)
    return (x / (np.abs(x).max() + 1e-6)).astype(np.float32)


class SoundDataset(Dataset):
    def __init__(self, n, cfg, seed, augment=False):
        rng = np.random.default_rng(seed)
        self.n = cfg["clip_len"]
        self.labels = rng.integers(0, cfg["n_classes"], n)
        self.clips = [synth_clip(l, rng, self.n, cfg["sample_rate"]) for l in self.labels]
        self.augment = augment

    def __len__(self):
        return len(self.clips)

    def _speed(self, x):
        rate = np.random.uniform(0.9, 1.1)
        idx = np.arange(self.n) * rate
        return np.interp(idx, np.arange(self.n), x)

    def _augment(self, x):
        x = self._speed(x)
        x = np.roll(x, np.random.randint(self.n))
        x = x * np.random.uniform(0.3, 1.0)
        snr = np.random.uniform(0.05, 0.4)
        x = x + snr * np.random.randn(self.n)
        if np.random.rand() < 0.5:
            start = np.random.randint(self.n - 400)
            x[start:start + 400] = 0.0
        if np.random.rand() < 0.5:      # random low-pass by moving average
            k = np.random.randint(2, 6)
            x = np.convolve(x, np.ones(k) / k, mode="same")
        return x

    def __getitem__(self, i):
        x = self.clips[i]
        if self.augment:
            x = self._augment(x)
        x = torch.tensor(x, dtype=torch.float32).unsqueeze(0)
        return x, int(self.labels[i])


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, :-self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel_size, dilation):
        super().__init__()
        pad = (kernel_size - 1) * dilation
        self.conv1 = parametrizations.weight_norm(
            nn.Conv1d(n_in, n_out, kernel_size, padding=pad, dilation=dilation))
        self.conv2 = parametrizations.weight_norm(
            nn.Conv1d(n_out, n_out, kernel_size, padding=pad, dilation=dilation))
        self.net = nn.Sequential(
            self.conv1, Chomp1d(pad), nn.ReLU(),
            self.conv2, Chomp1d(pad), nn.ReLU())
        self.downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x):
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(out + res)


class TCN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        ch = cfg["channels"]
        self.stem = nn.Sequential(nn.Conv1d(1, ch[0], 16, stride=8, padding=4), nn.BatchNorm1d(ch[0]), nn.ReLU())
        blocks, n_in = [], ch[0]
        for i, c in enumerate(ch):
            blocks.append(TemporalBlock(n_in, c, cfg["kernel_size"], 2 ** i))
            n_in = c
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(n_in, cfg["n_classes"])

    def forward(self, x):
        h = self.blocks(self.stem(x))
        return self.fc(h.mean(dim=2))


def run_epoch(model, loader, criterion, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total_loss, correct, seen = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            total_loss += loss.item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            if training and (seen // len(y)) % 20 == 0:
                print(f"    {seen:5d} clips  loss {total_loss / seen:.4f}  acc {correct / seen:.3f}")
    return total_loss / seen, correct / seen


def main(cfg):
    set_seed(cfg["seed"])
    train_loader = DataLoader(SoundDataset(cfg["n_train"], cfg, 100, augment=True), cfg["batch_size"], shuffle=True)
    val_loader = DataLoader(SoundDataset(cfg["n_val"], cfg, 200), cfg["batch_size"])
    model = TCN(cfg)
    print(f"TCN with {sum(p.numel() for p in model.parameters()):,} parameters")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["epochs"])
    best = 0.0
    for epoch in range(1, cfg["epochs"] + 1):
        t0 = time.time()
        tr_loss, tr_acc = run_epoch(model, train_loader, criterion, optimizer)
        va_loss, va_acc = run_epoch(model, val_loader, criterion)
        scheduler.step()
        print(f"epoch {epoch}: train {tr_loss:.4f}/{tr_acc:.3f}  val {va_loss:.4f}/{va_acc:.3f}  ({time.time() - t0:.1f}s)")
        if va_acc >= best:
            best = va_acc
            torch.save(model.state_dict(), "audio_tcn_best.pt")
    print(f"best val acc {best:.3f}")


if __name__ == "__main__":
    main(CONFIG)
