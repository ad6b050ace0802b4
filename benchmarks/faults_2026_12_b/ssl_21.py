"""Momentum-contrast pretraining on digits."""
import argparse
import copy
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(4, 64), nn.ReLU(),
        )
        self.proj = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, x):
        return F.normalize(self.proj(self.body(x).mean((2, 3))), dim=1)


class Negatives:
    """First in, first out store of key embeddings."""

    def __init__(self, size, dim):
        self.items = deque(F.normalize(torch.randn(size, dim), dim=1), maxlen=size)

    def push(self, keys):
        self.items.extend(keys)

    def matrix(self):
        return torch.stack(list(self.items))


class MoCo(nn.Module):
    def __init__(self, dim, queue, momentum, temperature):
        super().__init__()
        self.q = Encoder(dim)
        self.k = copy.deepcopy(self.q)
        for p in self.k.parameters():
            p.requires_grad_(False)
        self.negatives = Negatives(queue, dim)
        self.m = momentum
        self.t = temperature

    @torch.no_grad()
    def update_key_encoder(self):
        torch._foreach_lerp_(list(self.k.parameters()), list(self.q.parameters()), 1 - self.m)

    def forward(self, a, b):
        q = self.q(a)
        with torch.no_grad():
            self.update_key_encoder()
            k = self.k(b)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.negatives.matrix().t()
        logits = torch.cat([pos, neg], 1) / self.t
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        self.negatives.push(k)
        return loss


def augment(x, gen):
    n = len(x)
    angle = (torch.rand(n, generator=gen) - 0.5) * 0.6
    scale = 1 + (torch.rand(n, generator=gen) - 0.5) * 0.4
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) * scale
    theta[:, 0, 1] = -torch.sin(angle) * scale
    theta[:, 1, 0] = torch.sin(angle) * scale
    theta[:, :, 2] = (torch.rand(n, 2, generator=gen) - 0.5) * 0.3
    x = F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)
    return x + 0.1 * torch.randn(x.shape, generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--queue", type=int, default=8192)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.03)
    opt = ap.parse_args()

    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(12)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16
    images = F.interpolate(images, size=(16, 16), mode="bilinear", align_corners=False)
    model = MoCo(opt.dim, opt.queue, momentum=0.99, temperature=0.1)
    sgd = torch.optim.SGD(model.q.parameters(), lr=opt.lr, momentum=0.9, weight_decay=1e-4)
    for step in range(opt.steps):
        idx = torch.randint(len(images), (opt.batch,), generator=gen)
        x = images[idx]
        loss = model(augment(x, gen), augment(x, gen))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    torch.save(model.q.state_dict(), "/tmp/moco_digits.pt")


if __name__ == "__main__":
    main()
