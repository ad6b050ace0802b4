import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter, ImageOps


class Pool:
    def __init__(self, n=600, size=72, classes=6):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, classes, n)
        self.images = []
        yy, xx = np.mgrid[:size, :size] / size
        for k in self.labels:
            wave = np.sin((k + 1) * 5 * xx + rng.uniform(0, 6)) + np.cos((k + 1) * 3 * yy)
            rgb = np.stack([wave * rng.uniform(20, 60) + 128 for _ in range(3)], -1) + rng.normal(
                0, 10, (size, size, 3)
            )
            self.images.append(Image.fromarray(rgb.clip(0, 255).astype(np.uint8)))


def augment(im):
    if random.random() < 0.5:
        im = ImageOps.mirror(im)
    im = im.rotate(random.uniform(-25, 25), Image.Resampling.BILINEAR)
    im = ImageEnhance.Color(im).enhance(random.uniform(0.6, 1.4))
    im = ImageEnhance.Contrast(im).enhance(random.uniform(0.7, 1.3))
    if random.random() < 0.3:
        im = im.filter(ImageFilter.GaussianBlur(1))
    return im.resize((40, 40), Image.Resampling.BICUBIC)


def to_tensor(im):
    return torch.from_numpy(np.array(im)).permute(2, 0, 1).float().div(255).sub(0.5)


def next_batch(pool, size):
    idx = random.sample(range(len(pool.images)), size)
    x = torch.stack([to_tensor(augment(pool.images[i])) for i in idx])
    return x, torch.tensor(pool.labels[idx])


class SepConv(nn.Sequential):
    def __init__(self, i, o, s):
        super().__init__(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6())


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("-b", type=int, default=48)
    cli.add_argument("-n", type=int, default=80)
    cli = cli.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    pool = Pool()
    net = nn.Sequential(
        SepConv(3, 16, 2),
        SepConv(16, 32, 1),
        SepConv(32, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 6),
    )
    opt = torch.optim.RAdam(net.parameters(), lr=3e-3)
    for n in range(cli.n):
        x, y = next_batch(pool, cli.b)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if n % 20 == 0:
            print(f"{n:03d}  {loss.item():.3f}")


if __name__ == "__main__":
    main()
