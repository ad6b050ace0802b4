# Keyword spotting on 1 second clips, log-mel + small CNN.  Tuned for a 2 core CPU: the clips are one tensor, augmentation
# and log-mel are done for the whole batch at once in the main process (no workers fighting for the two cores),
# the network runs channels_last in bfloat16 autocast, plain loop, fused AdamW.
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

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


class SpeechCommands:
    """make_batch(idx) -> (B, 1, n_mels, frames), labels"""

    def __init__(self, n_clips, seed, train=True, n_fft=512, hop=160, n_mels=64):
        rng = np.random.default_rng(seed)
        labels = [int(rng.integers(len(WORDS))) for _ in range(n_clips)]
        self.clips = torch.empty(n_clips, SR)
        for i, l in enumerate(labels):
            self.clips[i] = torch.from_numpy(synth_clip(l, rng))
        self.labels = torch.tensor(labels)
        if train:
            noise = np.cumsum(rng.normal(0, 1, SR * 20)).astype(np.float32)
            noise -= np.convolve(noise, np.ones(400) / 400, mode="same").astype(np.float32)
            noise /= np.abs(noise).max()
            self.noise = torch.from_numpy(noise)
        self.train = train
        self.n_fft, self.hop, self.n_mels = n_fft, hop, n_mels
        self.window = torch.hann_window(400)
        self.fb = mel_filterbank(n_mels, n_fft, SR)

    def __len__(self):
        return len(self.clips)

    def waves(self, idx):
        if not self.train:
            return self.clips[idx]
        wav = torch.empty(len(idx), SR)
        for row, i in zip(wav, idx.tolist()):
            shift = random.randint(-1600, 1600) % SR
            clip = self.clips[i]
            row[shift:] = clip[:SR - shift]
            row[:shift] = clip[SR - shift:]
            if random.random() < 0.8:
                j = random.randint(0, len(self.noise) - SR - 1)
                row.add_(self.noise[j:j + SR], alpha=random.uniform(0, 0.8))
        return wav

    @torch.no_grad()
    def make_batch(self, idx):
        spec = torch.stft(self.waves(idx), self.n_fft, hop_length=self.hop, win_length=400,
                          window=self.window, return_complex=True)
        ri = torch.view_as_real(spec).square_()
        power = ri[..., 0] + ri[..., 1]
        mel = torch.matmul(self.fb, power).add_(1e-6).log_()
        std, mean = torch.std_mean(mel, dim=(1, 2), keepdim=True)
        mel.sub_(mean).div_(std + 1e-5)
        if self.train:
            for m in mel:
                f = random.randint(0, 8)
                f0 = random.randint(0, m.shape[0] - f)
                m[f0:f0 + f] = 0
                w = random.randint(0, 15)
                t0 = random.randint(0, m.shape[1] - w)
                m[:, t0:t0 + w] = 0
        return mel.unsqueeze(1).contiguous(memory_format=torch.channels_last), self.labels[idx]


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1),
        nn.BatchNorm2d(c_out),
        nn.MaxPool2d(2),            # max and ReLU commute: ReLU on a quarter of the elements
        nn.ReLU(inplace=True),
    )


class KeywordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            conv_block(1, 32),
            conv_block(32, 64),
            conv_block(64, 128),
            conv_block(128, 128),
        )
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(128, len(WORDS))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.net(x)
        x = x.float().mean(dim=(2, 3))
        return self.fc(self.dropout(x))


@torch.inference_mode()
def validate(model, ds, batch_size):
    model.eval()
    loss = correct = 0.0
    for idx in torch.arange(len(ds)).split(batch_size):
        x, y = ds.make_batch(idx)
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
    model.train()
    print(f"val_loss {loss / len(ds):.4f} val_acc {correct / len(ds):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()

    random.seed(1234)
    torch.manual_seed(1234)
    train_ds = SpeechCommands(2560, seed=1)
    val_ds = SpeechCommands(320, seed=2, train=False)
    model = KeywordModel().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    step = 0
    while step < args.steps:
        for idx in torch.randperm(len(train_ds)).split(args.batch_size):
            if len(idx) < args.batch_size:
                break
            x, y = train_ds.make_batch(idx)
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                acc = (logits.argmax(1) == y).float().mean()
                print(f"step {step} loss {loss.item():.4f} acc {acc.item():.3f}", flush=True)
            if step >= args.steps:
                break
        validate(model, val_ds, args.batch_size)


if __name__ == "__main__":
    main()
