import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def write_images(folder, n=400, size=320):
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 12, size)
    for i in range(n):
        label = i % 5
        base = np.sin(grid * (label + 1))[:, None] * np.cos(grid * rng.uniform(0.5, 2))[None]
        rgb = np.stack([base * rng.uniform(0.3, 1) for _ in range(3)], -1) + rng.normal(
            0, 0.05, (size, size, 3)
        )
        Image.fromarray(((rgb.clip(-1, 1) + 1) * 127).astype("uint8")).save(
            folder / f"{label}_{i:04d}.jpg", quality=90
        )


class Folder(Dataset):
    mean, std = 0.5, 0.25

    def __init__(self, folder, size):
        self.files = sorted(folder.glob("*.jpg"))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path = self.files[i]
        with Image.open(path) as im:
            im = im.convert("RGB").resize((self.size, self.size))
            a = np.asarray(im, dtype=np.float32) / 255.0
        x = torch.from_numpy((a - self.mean) / self.std).permute(2, 0, 1).contiguous()
        return x, int(path.name[0])


def conv(i, o, s):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch-size", type=int, default=32)
    args = ap.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        write_images(folder)
        data = Folder(folder, 64)
        loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
        model = nn.Sequential(
            conv(3, 32, 2),
            conv(32, 48, 1),
            conv(48, 64, 2),
            conv(64, 64, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 5),
        )
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(args.epochs):
            total = 0.0
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item()
            print(epoch, total / len(loader))


if __name__ == "__main__":
    main()
