"""Sound-event classification with a TCN: hand-optimised version of audio_tcn.py.

Same clips, augmentation draws, order, initial weights, AdamW, clipping and number of steps.
"""
import os
import queue
import random
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations

BF = os.environ.get("BF", "1") == "1"
CO = os.environ.get("CO", "1") == "1"
PAD = os.environ.get("PAD", "1") == "1"
THREAD = os.environ.get("TH", "1") == "1"

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


class SoundDataset:
    def __init__(self, n, cfg, seed, augment=False):
        rng = np.random.default_rng(seed)
        self.n = cfg["clip_len"]
        self.labels = rng.integers(0, cfg["n_classes"], n)
        self.clips = np.stack([synth_clip(l, rng, self.n, cfg["sample_rate"]) for l in self.labels])
        self.labels = torch.from_numpy(self.labels)
        self.grid = np.arange(self.n)
        self.augment = augment

    def __len__(self):
        return len(self.clips)

    def batch(self, idx):
        clips = self.clips[idx]
        if not self.augment:
            return torch.from_numpy(clips)
        n, b = self.n, len(idx)
        rate, shift, gain, snr = np.empty(b), np.empty(b, np.int64), np.empty(b), np.empty(b)
        noise = np.empty((b, n), np.float32)
        hole, width = [None] * b, [None] * b
        for i in range(b):              # the draws, in the order of the original
            rate[i] = np.random.uniform(0.9, 1.1)
            shift[i] = np.random.randint(n)
            gain[i] = np.random.uniform(0.3, 1.0)
            snr[i] = np.random.uniform(0.05, 0.4)
            noise[i] = np.random.randn(n)
            if np.random.rand() < 0.5:
                hole[i] = np.random.randint(n - 400)
            if np.random.rand() < 0.5:
                width[i] = np.random.randint(2, 6)
        # speed change (linear interpolation) and roll in one gather
        pos = np.minimum(((self.grid - shift[:, None]) % n) * rate[:, None], n - 1.0)
        lo = np.minimum(pos.astype(np.int32), n - 2)
        frac = (pos - lo).astype(np.float32)
        lo += (np.arange(b, dtype=np.int32) * n)[:, None]
        flat = clips.ravel()
        a = flat.take(lo)
        x = flat.take(lo + 1)
        x -= a
        x *= frac
        x += a
        x *= gain[:, None].astype(np.float32)
        noise *= snr[:, None].astype(np.float32)
        x += noise
        for i in range(b):
            if hole[i] is not None:
                x[i, hole[i]:hole[i] + 400] = 0.0
            if width[i] is not None:
                k = width[i]
                x[i] = np.convolve(x[i], np.full(k, 1 / k, np.float32), mode="same")
        return torch.from_numpy(x)


def batches(dataset, batch_size, shuffle, ahead=2):
    """(x, y) batches as of the DataLoader (same order), made ahead in a thread."""
    torch.empty((), dtype=torch.int64).random_()            # the DataLoader's base seed
    if shuffle:
        g = torch.Generator()
        g.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order = torch.randperm(len(dataset), generator=g).numpy()
    else:
        order = np.arange(len(dataset))
    chunks = [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
    if not THREAD:
        for c in chunks:
            yield dataset.batch(c), dataset.labels[torch.from_numpy(c)]
        return
    q = queue.Queue(ahead)

    def work():
        for c in chunks:
            q.put((dataset.batch(c), dataset.labels[torch.from_numpy(c)]))

    threading.Thread(target=work, daemon=True).start()
    for _ in chunks:
        yield q.get()


def conv(m, x):
    """causal dilated convolution of b, c, 1, t (channels last)"""
    d = m.dilation[0]
    w = m.weight.unsqueeze(2).to(memory_format=torch.channels_last)
    if PAD:
        return F.conv2d(F.pad(x, ((w.size(3) - 1) * d, 0)), w, m.bias, dilation=(1, d))
    p = (w.size(3) - 1) * d
    return F.conv2d(x, w, m.bias, dilation=(1, d), padding=(0, p))[..., :-p]


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel_size, dilation):
        super().__init__()
        pad = (kernel_size - 1) * dilation
        self.conv1 = parametrizations.weight_norm(
            nn.Conv1d(n_in, n_out, kernel_size, padding=pad, dilation=dilation))
        self.conv2 = parametrizations.weight_norm(
            nn.Conv1d(n_out, n_out, kernel_size, padding=pad, dilation=dilation))
        self.net = nn.Sequential(
            self.conv1, nn.Identity(), nn.ReLU(),
            self.conv2, nn.Identity(), nn.ReLU())
        self.downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x):
        out = F.relu_(conv(self.conv2, F.relu_(conv(self.conv1, x))))
        res = x if self.downsample is None else F.conv2d(x, self.downsample.weight.unsqueeze(2), self.downsample.bias)
        return F.relu_(out + res)


class TCN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        ch = cfg["channels"]
        self.stem = nn.Sequential(nn.Conv1d(1, ch[0], 16, stride=8, padding=4), nn.BatchNorm2d(ch[0]), nn.ReLU())
        blocks, n_in = [], ch[0]
        for i, c in enumerate(ch):
            blocks.append(TemporalBlock(n_in, c, cfg["kernel_size"], 2 ** i))
            n_in = c
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(n_in, cfg["n_classes"])

    def forward(self, x):
        # x: b, n.  The stem is a convolution of kernel 16 and stride 8: a matmul of overlapping windows
        with torch.autocast("cpu", torch.bfloat16, enabled=BF):
            s, bn = self.stem[0], self.stem[1]
            win = F.pad(x, (4, 4)).unfold(1, 16, 8)
            h = F.linear(win, s.weight[:, 0], s.bias).transpose(1, 2).unsqueeze(2)
            h = self.blocks(F.relu_(bn(h)))
        return self.fc(h.float().mean(dim=(2, 3)))


def run_epoch(model, loss_of, data, batch_size, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total_loss, correct, seen = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for x, y in batches(data, batch_size, shuffle=training):
            loss, right = loss_of(x, y)
            if training:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total_loss += loss.item() * len(y)
            correct += right.item()
            seen += len(y)
            if training and (seen // len(y)) % 20 == 0:
                print(f"    {seen:5d} clips  loss {total_loss / seen:.4f}  acc {correct / seen:.3f}")
    return total_loss / seen, correct / seen


def main(cfg):
    set_seed(cfg["seed"])
    train_data = SoundDataset(cfg["n_train"], cfg, 100, augment=True)
    val_data = SoundDataset(cfg["n_val"], cfg, 200)
    model = TCN(cfg)
    print(f"TCN with {sum(p.numel() for p in model.parameters()):,} parameters")

    def eager_loss(x, y):
        logits = model(x)
        return F.cross_entropy(logits, y), (logits.argmax(1) == y).sum()

    train_loss = torch.compile(eager_loss, dynamic=False) if CO else eager_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"], fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["epochs"])
    best = 0.0
    for epoch in range(1, cfg["epochs"] + 1):
        t0 = time.time()
        tr_loss, tr_acc = run_epoch(model, train_loss, train_data, cfg["batch_size"], optimizer)
        va_loss, va_acc = run_epoch(model, eager_loss, val_data, cfg["batch_size"])
        scheduler.step()
        print(f"epoch {epoch}: train {tr_loss:.4f}/{tr_acc:.3f}  val {va_loss:.4f}/{va_acc:.3f}  ({time.time() - t0:.1f}s)")
        if va_acc >= best:
            best = va_acc
            torch.save(model.state_dict(), "audio_tcn_best.pt")
    print(f"best val acc {best:.3f}")


if __name__ == "__main__":
    main(CONFIG)
