"""Shape segmentation with a small U-Net."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.metrics import jaccard_score
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    n_images: int = 240
    size: int = 64
    classes: int = 4
    batch: int = 8
    epochs: int = 16
    lr: float = 1e-3
    width: int = 8
    seed: int = 7


def make_scene(rng, size, classes):
    img = rng.normal(0, 0.15, (3, size, size)).astype(np.float32)
    mask = np.zeros((size, size), dtype=np.int64)
    yy, xx = np.mgrid[:size, :size]
    for _ in range(rng.integers(2, 5)):
        c = int(rng.integers(1, classes))
        cy, cx = rng.integers(8, size - 8, 2)
        r = rng.integers(5, 12)
        if c == 1:
            hit = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
        elif c == 2:
            hit = (abs(yy - cy) < r) & (abs(xx - cx) < r)
        else:
            hit = abs(yy - cy) + abs(xx - cx) < r
        mask[hit] = c
        img[:, hit] += rng.uniform(0.3, 1.0, (3, 1)).astype(np.float32)
    return img, mask


class Block(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.d1, self.d2, self.d3 = Block(3, w), Block(w, 2 * w), Block(2 * w, 4 * w)
        self.u2, self.u1 = Block(6 * w, 2 * w), Block(3 * w, w)
        self.out = nn.Conv2d(w, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)


def soft_dice(logits, target, classes):
    probs = logits.softmax(1)
    onehot = F.one_hot(target, classes).permute(0, 3, 1, 2).to(probs.dtype)
    inter = (probs * onehot).sum((0, 2, 3))
    denom = probs.sum((0, 2, 3)) + onehot.sum((0, 2, 3))
    return 1 - ((2 * inter + 1) / (denom + 1)).mean()


class Meter:
    def __init__(self):
        self.values = []

    def add(self, v):
        self.values.append(v)

    def mean(self):
        return float(np.mean(self.values)) if self.values else float("nan")


def mean_iou(logits, target):
    pred = logits.argmax(1).flatten().numpy()
    return jaccard_score(target.flatten().numpy(), pred, average="macro", zero_division=0)


def train_epoch(cfg, net, loader, opt):
    losses, ious = Meter(), Meter()
    for img, mask in loader:
        logits = net(img)
        loss = F.cross_entropy(logits, mask) + soft_dice(logits, mask, cfg.classes)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        losses.add(loss.item())
        ious.add(mean_iou(logits.detach(), mask))
    return losses.mean(), ious.mean()


def run(cfg):
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    scenes = [make_scene(rng, cfg.size, cfg.classes) for _ in range(cfg.n_images)]
    data = TensorDataset(
        torch.from_numpy(np.stack([s[0] for s in scenes])),
        torch.from_numpy(np.stack([s[1] for s in scenes])),
    )
    loader = DataLoader(data, batch_size=cfg.batch, shuffle=True)
    net = UNet(cfg.width, cfg.classes)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        loss, iou = train_epoch(cfg, net, loader, opt)
        print(f"[{epoch}] train loss {loss:.4f}  mIoU {iou:.3f}")


if __name__ == "__main__":
    run(Config())
