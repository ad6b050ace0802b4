# Keyword spotting on 1 second clips, log-mel + small CNN, trained with Lightning.
import argparse
import math
import random

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SR = 16000
WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]


def synth_clip(label, rng):
    """a 'word' = two or three syllables with formant glides typical of the word"""
    word = np.random.default_rng(1000 + label)
    t = np.arange(SR) / SR
    out = np.zeros(SR)
    n_syl = word.integers(2, 4)
    pos = 0.1 + 0.1 * rng.random()
    pitch = rng.uniform(90, 220)
    for _ in range(n_syl):
        dur = word.uniform(0.15, 0.25) * rng.uniform(0.85, 1.15)
        f_start, f_end = word.uniform(300, 2800, 3), word.uniform(300, 2800, 3)
        n = int(dur * SR)
        i0 = int(pos * SR)
        n = min(n, SR - i0)
        if n <= 0:
            break
        s = np.linspace(0, 1, n)
        env = np.sin(np.pi * s) ** 0.7
        syl = np.zeros(n)
        for a, b in zip(f_start, f_end):
            f = (a + (b - a) * s) * rng.uniform(0.9, 1.1)
            syl += np.sin(2 * np.pi * np.cumsum(f) / SR + rng.uniform(0, 6.28))
        syl *= 1 + 0.6 * np.sin(2 * np.pi * pitch * t[:n])
        out[i0:i0 + n] += env * syl
        pos += dur * 1.05
    out += rng.normal(0, 0.7, SR)
    return (out / np.abs(out).max()).astype(np.float32)


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filterbank(n_mels, n_fft, sr, fmin=20.0, fmax=7600.0):
    pts = [mel_to_hz(hz_to_mel(fmin) + i * (hz_to_mel(fmax) - hz_to_mel(fmin)) / (n_mels + 1)) for i in range(n_mels + 2)]
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    fb = torch.zeros(n_mels, n_fft // 2 + 1)
    for i in range(n_mels):
        lo, mid, hi = pts[i], pts[i + 1], pts[i + 2]
        up = (freqs - lo) / (mid - lo)
        down = (hi - freqs) / (hi - mid)
        fb[i] = torch.clamp(torch.min(up, down), min=0)
    return fb


class SpeechCommands(Dataset):
    def __init__(self, n_clips, seed, train=True, n_fft=512, hop=160, n_mels=64):
        rng = np.random.default_rng(seed)
        self.labels = [int(rng.integers(len(WORDS))) for _ in range(n_clips)]
        self.clips = [synth_clip(l, rng) for l in self.labels]
        self.noise = np.cumsum(rng.normal(0, 1, SR * 20)).astype(np.float32)
        self.noise -= np.convolve(self.noise, np.ones(400) / 400, mode="same").astype(np.float32)
        self.noise /= np.abs(self.noise).max()
        self.train = train
        self.n_fft, self.hop = n_fft, hop
        self.fb = mel_filterbank(n_mels, n_fft, SR)

    def __len__(self):
        return len(self.clips)

    def augment(self, wav):
        shift = random.randint(-1600, 1600)
        wav = torch.roll(wav, shift)
        if random.random() < 0.8:
            i = random.randint(0, len(self.noise) - SR - 1)
            wav = wav + random.uniform(0, 0.8) * torch.from_numpy(self.noise[i:i + SR])
        return wav

    def __getitem__(self, idx):
        wav = torch.from_numpy(self.clips[idx])
        if self.train:
            wav = self.augment(wav)
        spec = torch.stft(wav, self.n_fft, hop_length=self.hop, win_length=400,
                          window=torch.hann_window(400), return_complex=True)
        power = spec.abs() ** 2
        mel = torch.log(torch.matmul(self.fb, power) + 1e-6)
        mel = (mel - mel.mean()) / (mel.std() + 1e-5)
        if self.train:
            # specaugment
            f = random.randint(0, 8)
            f0 = random.randint(0, mel.shape[0] - f)
            mel[f0:f0 + f] = 0
            w = random.randint(0, 15)
            t0 = random.randint(0, mel.shape[1] - w)
            mel[:, t0:t0 + w] = 0
        return mel.unsqueeze(0), self.labels[idx]


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1),
        nn.BatchNorm2d(c_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class KeywordModel(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.net = nn.Sequential(
            conv_block(1, 32),
            conv_block(32, 64),
            conv_block(64, 128),
            conv_block(128, 128),
        )
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(128, len(WORDS))
        self.lr = lr

    def forward(self, x):
        x = self.net(x)
        x = x.mean(dim=(2, 3))
        return self.fc(self.dropout(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.05)
        step = self.global_step + 1
        if step % 10 == 0:
            acc = (logits.argmax(1) == y).float().mean()
            print(f"step {step} loss {loss.item():.4f} acc {acc.item():.3f}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        if "val_loss" in m:
            print(f"val_loss {m['val_loss']:.4f} val_acc {m['val_acc']:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    L.seed_everything(1234, workers=True)
    train_ds = SpeechCommands(2560, seed=1)
    val_ds = SpeechCommands(320, seed=2, train=False)
    train_dl = DataLoader(train_ds, batch_size=args.batch_size, shuffle=True, num_workers=2, drop_last=True)
    val_dl = DataLoader(val_ds, batch_size=args.batch_size, num_workers=2)

    trainer = L.Trainer(accelerator="cpu", max_steps=args.steps, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, num_sanity_val_steps=0, enable_model_summary=False)
    trainer.fit(KeywordModel(), train_dl, val_dl)


if __name__ == "__main__":
    main()
