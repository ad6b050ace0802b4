"""SimCLR: two augmented views of each tile, NT-Xent loss, projection head, cosine schedule."""

import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    """Random resized crop, flip, grey, colour jitter, by hand on tensors, twice."""

    def __init__(self, n=1024, tile=96, size=48):
        photos = load_sample_images().images
        rng = np.random.RandomState(4)
        self.tiles = []
        for i in range(n):
            photo = photos[i % 2]
            y = rng.randint(photo.shape[0] - tile)
            x = rng.randint(photo.shape[1] - tile)
            self.tiles.append(photo[y : y + tile, x : x + tile])
        self.tile, self.size = tile, size

    def __len__(self):
        return len(self.tiles)

    def view(self, tile):
        side = random.randint(self.tile // 3, self.tile)
        y, x = random.randint(0, self.tile - side), random.randint(0, self.tile - side)
        image = torch.from_numpy(tile[y : y + side, x : x + side].copy()).permute(2, 0, 1) / 255.0
        image = F.interpolate(image[None], size=self.size, mode="bilinear", align_corners=False)[0]
        if random.random() < 0.5:
            image = image.flip(-1)
        image = image * (0.6 + 0.8 * torch.rand(3, 1, 1))
        if random.random() < 0.2:
            image = image.mean(0, keepdim=True).expand(3, -1, -1)
        return (image - 0.45) / 0.25

    def __getitem__(self, i):
        return self.view(self.tiles[i]), self.view(self.tiles[i])


def conv_bn(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()
    )


class SimCLR(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.encoder = nn.Sequential(
            conv_bn(3, 64, 1),
            conv_bn(64, 64, 2),
            conv_bn(64, 128, 1),
            conv_bn(128, 128, 2),
            conv_bn(128, 256, 1),
            conv_bn(256, 256, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, dim))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def nt_xent(z1, z2, temperature):
    n = len(z1)
    z = torch.cat([z1, z2])
    sim = z @ z.t() / temperature
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.2)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(TwoViews(), args.batch_size, shuffle=True, drop_last=True)
    model = SimCLR()
    base_lr = 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=base_lr, weight_decay=1e-6)
    step = 0
    while step < args.steps:
        for first, second in loader:
            lr = base_lr * 0.5 * (1 + math.cos(math.pi * step / args.steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss = nt_xent(model(first), model(second), args.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.8f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
