import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def write_shards(folder, shards=30, per=24, length=1600):
    rng = np.random.default_rng(0)
    t = np.arange(length) / 8000
    for s in range(shards):
        label = rng.integers(0, 8, per)
        f = 200 * (1 + label) * (1 + 0.02 * rng.normal(size=per))
        wave = np.sin(2 * np.pi * f[:, None] * t) + 0.1 * rng.normal(size=(per, length))
        pcm = (np.clip(wave / 2, -1, 1) * 2000).astype(np.int16)
        np.savez_compressed(folder / f"shard{s:03d}.npz", wave=pcm, label=label)


class Shards(Dataset):
    def __init__(self, folder, per=24):
        self.files = sorted(Path(folder).glob("*.npz"))
        self.per = per

    def __len__(self):
        return len(self.files) * self.per

    def __getitem__(self, i):
        with np.load(self.files[i // self.per]) as archive:
            wave = archive["wave"][i % self.per]
            label = archive["label"][i % self.per]
        return torch.from_numpy(wave / np.float32(32768)), int(label)


class WaveNet(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, c, 32, stride=8),
            nn.ReLU(),
            nn.Conv1d(c, 2 * c, 5, stride=2),
            nn.ReLU(),
            nn.Conv1d(2 * c, 2 * c, 5),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * c, 8),
        )

    def forward(self, w):
        return self.net(w.unsqueeze(1))


def main():
    torch.manual_seed(0)
    model = WaveNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        write_shards(folder)
        loader = DataLoader(Shards(folder), batch_size=24, shuffle=True)
        for epoch in range(4):
            for wave, label in loader:
                loss = nn.functional.cross_entropy(model(wave), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    main()
