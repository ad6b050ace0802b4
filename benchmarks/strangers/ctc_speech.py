"""Toy speech recognition: synthetic spectrograms of digit strings, Conv + BiLSTM + CTC."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MELS = 40


class SpokenDigits(Dataset):
    def __init__(self, n=2000):
        rng = np.random.default_rng(9)
        # Each digit is a path of two formants through the mel bands
        self.paths = rng.uniform(4, 36, size=(10, 2, 4))
        self.texts = [rng.integers(0, 10, size=rng.integers(3, 8)) for _ in range(n)]

    def __len__(self):
        return len(self.texts)

    def say(self, digit):
        frames = np.random.randint(14, 24)
        bands = np.arange(MELS)[:, None]
        sound = np.zeros((MELS, frames))
        for path in self.paths[digit]:
            centre = np.interp(np.linspace(0, 3, frames), np.arange(4), path)
            sound += np.exp(-((bands - centre - np.random.randn()) ** 2) / 4)
        return sound * np.hanning(frames)

    def __getitem__(self, i):
        text = self.texts[i]
        sound = np.concatenate([self.say(d) for d in text], axis=1)
        sound += 0.1 * np.random.randn(*sound.shape)
        return torch.tensor(sound, dtype=torch.float32), torch.tensor(text) + 1


def collate(items):
    sounds, texts = zip(*items, strict=True)
    lengths = torch.tensor([s.shape[1] for s in sounds])
    batch = torch.zeros(len(sounds), 1, MELS, int(lengths.max()))
    for row, sound in zip(batch, sounds, strict=True):
        row[0, :, : sound.shape[1]] = sound
    return batch, lengths, torch.cat(texts), torch.tensor([len(t) for t in texts])


class Recognizer(nn.Module):
    def __init__(self, hidden=128, classes=11):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=(2, 2), padding=1),
            nn.BatchNorm2d(24),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(24, 24, 3, stride=(2, 1), padding=1),
            nn.BatchNorm2d(24),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.lstm = nn.LSTM(
            24 * MELS // 4, hidden, 2, batch_first=True, bidirectional=True, dropout=0.1
        )
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, x, lengths):
        x = self.conv(x)
        x = x.permute(0, 3, 1, 2).flatten(2)
        x, _ = self.lstm(x)
        log_probs = self.fc(x).log_softmax(-1)
        return log_probs.transpose(0, 1), (lengths + 1) // 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(SpokenDigits(), batch_size=24, shuffle=True, collate_fn=collate)
    model = Recognizer()
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while step < args.steps:
        for sounds, lengths, texts, text_lengths in loader:
            log_probs, out_lengths = model(sounds, lengths)
            loss = ctc(log_probs, texts, out_lengths, text_lengths)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
