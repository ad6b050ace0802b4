import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Adam:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=0.0):
        self.params = list(params)
        self.lr, self.betas, self.eps, self.wd = lr, betas, eps, wd
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            g = p.grad
            if g is None:
                continue
            if self.wd:
                g = g + self.wd * p
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            mhat = self.m[i] / (1 - b1**self.t)
            vhat = self.v[i] / (1 - b2**self.t)
            p.copy_(p - self.lr * mhat / (vhat.sqrt() + self.eps))


class Unit(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(h), nn.Linear(h, h)

    def forward(self, x):
        return x + F.relu(self.fc(self.norm(x)))


class MultiTask(nn.Module):
    def __init__(self, d=64, h=80, depth=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, h), *[Unit(h) for _ in range(depth)])
        self.cls = nn.Linear(h, 6)
        self.reg = nn.Linear(h, 2)
        self.bin = nn.Linear(h, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.reg(h), self.bin(h).squeeze(1)


def problem(n=6000, d=64):
    x = torch.randn(n, d)
    w = torch.randn(d, 9) / math.sqrt(d)
    s = torch.tanh(x @ w)
    return x, s[:, :6].argmax(1), s[:, 6:8], (s[:, 8] > 0).float()


def main():
    random.seed(0)
    torch.manual_seed(0)
    x, c, r, b = problem()
    net = MultiTask()
    opt = Adam(net.parameters(), lr=5e-4, wd=1e-4)
    for step in range(100):
        i = torch.randint(0, len(x), (96,))
        lc, lr_, lb = net(x[i])
        loss = (
            F.cross_entropy(lc, c[i])
            + F.mse_loss(lr_, r[i])
            + F.binary_cross_entropy_with_logits(lb, b[i])
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print("step %3d total %.4f" % (step, loss.item()))


if __name__ == "__main__":
    main()
