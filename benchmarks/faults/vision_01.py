import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F


def make_blobs(n, classes=10, size=32):
    """Coloured gaussian blobs, the class is the position on a circle."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    y = torch.randint(0, classes, (n,))
    angle = y.float() / classes * 6.2831
    cx, cy = 0.5 * torch.cos(angle), 0.5 * torch.sin(angle)
    d = (xx[None] - cx[:, None, None]) ** 2 + (yy[None] - cy[:, None, None]) ** 2
    img = torch.exp(-8 * d)[:, None] * torch.rand(n, 3, 1, 1)
    return img + 0.1 * torch.randn(n, 3, size, size), y


def augment(x):
    out = []
    for img in x:
        if random.random() < 0.5:
            img = img.flip(-1)
        img = F.pad(img, (4, 4, 4, 4))
        top, left = random.randint(0, 8), random.randint(0, 8)
        img = img[:, top : top + 32, left : left + 32]
        img = img * (0.8 + 0.4 * torch.rand(1)) + 0.1 * torch.randn(1)
        angle = torch.tensor(random.uniform(-0.3, 0.3))
        theta = torch.stack(
            [angle.cos(), -angle.sin(), angle * 0, angle.sin(), angle.cos(), angle * 0]
        ).view(1, 2, 3)
        grid = F.affine_grid(theta, (1, 3, 32, 32), align_corners=False)
        img = F.grid_sample(img[None], grid, align_corners=False)[0]
        out.append(img.clamp(-3, 3))
    return torch.stack(out)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


def build():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        Res(12),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 32, 1),
        Res(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bs", default=128, type=int)
    p.add_argument("--iters", default=100, type=int)
    opt = p.parse_args()
    data, target = make_blobs(4096)
    net = build()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, opt.iters)
    seen = correct = 0
    for it in range(opt.iters):
        pick = torch.randint(0, len(data), (opt.bs,))
        x, y = augment(data[pick]), target[pick]
        logits = net(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        sched.step()
        seen += len(y)
        correct += (logits.argmax(1) == y).sum().item()
        if (it + 1) % 20 == 0:
            print(f"{it + 1}: loss={loss.item():.3f} acc={correct / seen:.3f}")
            seen = correct = 0


if __name__ == "__main__":
    main()
