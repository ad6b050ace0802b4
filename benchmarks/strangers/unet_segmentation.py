"""UNet: find the shapes drawn over a noisy photograph. Dice + BCE loss, IoU on the way."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image
from torch.utils.data import DataLoader, Dataset


class ShapesOnPhoto(Dataset):
    def __init__(self, n=400, size=96):
        self.n, self.size = n, size
        self.photo = Image.fromarray(load_sample_image("flower.jpg"))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rnd = random.Random(i)
        s = self.size
        x, y = rnd.randrange(self.photo.width - s), rnd.randrange(self.photo.height - s)
        image = self.photo.crop((x, y, x + s, y + s))
        mask = Image.new("L", (s, s))
        for _ in range(rnd.randint(1, 4)):
            cx, cy, r = rnd.randrange(s), rnd.randrange(s), rnd.randint(6, 20)
            box = (cx - r, cy - r, cx + r, cy + rnd.randint(2, r))
            colour = tuple(rnd.randrange(256) for _ in range(3))
            shape = rnd.choice(["ellipse", "rectangle"])
            getattr(ImageDraw.Draw(image), shape)(box, fill=colour)
            getattr(ImageDraw.Draw(mask), shape)(box, fill=255)
        image = np.asarray(image, dtype=np.float32) / 255
        mask = np.asarray(mask, dtype=np.float32) / 255
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(mask)[None]


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=24):
        super().__init__()
        self.inc = double_conv(3, base)
        self.d1 = double_conv(base, base * 2)
        self.d2 = double_conv(base * 2, base * 4)
        self.d3 = double_conv(base * 4, base * 8)
        self.u3 = nn.ConvTranspose2d(base * 8, base * 4, 2, stride=2)
        self.c3 = double_conv(base * 8, base * 4)
        self.u2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.c2 = double_conv(base * 4, base * 2)
        self.u1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.c1 = double_conv(base * 2, base)
        self.out = nn.Conv2d(base, 1, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.d1(self.pool(x1))
        x3 = self.d2(self.pool(x2))
        x4 = self.d3(self.pool(x3))
        x = self.c3(torch.cat([x3, self.u3(x4)], dim=1))
        x = self.c2(torch.cat([x2, self.u2(x)], dim=1))
        x = self.c1(torch.cat([x1, self.u1(x)], dim=1))
        return self.out(x)


def dice_loss(logits, target, eps=1.0):
    prob = torch.sigmoid(logits)
    inter = (prob * target).sum(dim=(1, 2, 3))
    union = prob.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3))
    return (1 - (2 * inter + eps) / (union + eps)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(ShapesOnPhoto(), batch_size=args.batch_size, shuffle=True)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    step = 0
    while step < args.steps:
        for image, mask in loader:
            optimizer.zero_grad()
            logits = net(image)
            loss = bce(logits, mask) + dice_loss(logits, mask)
            loss.backward()
            optimizer.step()
            step += 1
            with torch.no_grad():
                found = logits > 0
                iou = (found & (mask > 0)).sum() / (found | (mask > 0)).sum().clamp(min=1)
            print(f"step {step} loss {loss.item():.8f} iou {iou.item():.4f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
