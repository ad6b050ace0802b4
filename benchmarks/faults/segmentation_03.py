import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Options:
    classes: int = 5
    size: int = 32
    batch: int = 10
    epochs: int = 2
    images: int = 400


class FCN(nn.Module):
    def __init__(self, classes, c=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1),
            nn.GroupNorm(4, c),
            nn.GELU(),
            nn.Conv2d(c, c, 3, padding=2, dilation=2),
            nn.GroupNorm(4, c),
            nn.GELU(),
            nn.Conv2d(c, c, 3, padding=4, dilation=4),
            nn.GroupNorm(4, c),
            nn.GELU(),
        )
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Confusion:
    def __init__(self, n):
        self.n = n
        self.m = [[0] * n for _ in range(n)]

    def add(self, pred, target):
        for p, t in zip(pred.flatten(), target.flatten()):
            self.m[int(t)][int(p)] += 1

    def miou(self):
        ious = []
        for k in range(self.n):
            union = sum(self.m[k]) + sum(r[k] for r in self.m) - self.m[k][k]
            ious.append(self.m[k][k] / union if union else 0.0)
        return sum(ious) / self.n


def voronoi(o):
    g = torch.Generator().manual_seed(9)
    yy, xx = torch.meshgrid(torch.arange(o.size), torch.arange(o.size), indexing="ij")
    pts = torch.rand(o.images, o.classes, 2, generator=g) * o.size
    d = (yy[None, None] - pts[..., 0, None, None]) ** 2 + (
        xx[None, None] - pts[..., 1, None, None]
    ) ** 2
    mask = d.argmin(1)
    img = mask[:, None].float() / o.classes + 0.15 * torch.randn(
        o.images, 1, o.size, o.size, generator=g
    )
    return img, mask


def main():
    o = Options()
    torch.manual_seed(0)
    img, mask = voronoi(o)
    net = FCN(o.classes)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for epoch in range(o.epochs):
        t0 = time.time()
        cm = Confusion(o.classes)
        for idx in torch.randperm(o.images).split(o.batch):
            logits = net(img[idx])
            loss = F.cross_entropy(logits, mask[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            cm.add(logits.argmax(1), mask[idx])
        print(f"epoch {epoch} loss {loss.item():.3f} miou {cm.miou():.3f} {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
