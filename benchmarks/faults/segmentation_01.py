import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, classes=3, c=12):
        super().__init__()
        self.d1, self.d2, self.d3 = DoubleConv(1, c), DoubleConv(c, 2 * c), DoubleConv(2 * c, 4 * c)
        self.u2, self.u1 = DoubleConv(6 * c, 2 * c), DoubleConv(3 * c, c)
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def scenes(n, size=48):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = torch.zeros(n, size, size, dtype=torch.long)
    for k in (1, 2):
        cy, cx = torch.randint(8, size - 8, (2, n, 1, 1))
        r = torch.randint(4, 12, (n, 1, 1))
        inside = (
            (yy - cy).abs().maximum((xx - cx).abs()) < r
            if k == 1
            else (yy - cy) ** 2 + (xx - cx) ** 2 < r**2
        )
        mask[inside] = k
    img = mask.float()[:, None] * 0.5 + 0.3 * torch.randn(n, 1, size, size)
    return img, mask


def dice(logits, target):
    p = logits.softmax(1)
    t = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - (2 * inter / (p + t).sum((0, 2, 3))).mean()


if __name__ == "__main__":
    seed_everything(42)
    images, masks = scenes(512)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(80):
        i = torch.randint(0, len(images), (16,))
        out = model(images[i])
        loss = F.cross_entropy(out, masks[i]) + dice(out, masks[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())
