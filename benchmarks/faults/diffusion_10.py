import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


class GaussianDiffusion(nn.Module):
    def __init__(self, net, T=300):
        super().__init__()
        self.net, self.T = net, T
        abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0)
        self.register_buffer("root", abar.sqrt())
        self.register_buffer("root1m", (1 - abar).sqrt())

    def forward(self, x):
        t = torch.randint(0, self.T, (len(x),))
        eps = torch.randn_like(x)
        xt = self.root[t, None] * x + self.root1m[t, None] * eps
        return F.mse_loss(self.net(xt, t), eps)


class Net(nn.Module):
    def __init__(self, d=2, w=320, depth=4, T=300):
        super().__init__()
        self.time = nn.Embedding(T, w)
        self.inp, self.out = nn.Linear(d, w), nn.Linear(w, d)
        self.body = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.SiLU()) for _ in range(depth)
        )

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for layer in self.body:
            h = h + layer(h)
        return self.out(h)


def moons(n):
    a = math.pi * torch.rand(n)
    upper = torch.rand(n) < 0.5
    p = torch.stack(
        [torch.where(upper, a.cos(), 1 - a.cos()), torch.where(upper, a.sin(), 0.5 - a.sin())], 1
    )
    return p + 0.05 * torch.randn(n, 2)


def train(steps=100, batch=768):
    torch.manual_seed(0)
    model = GaussianDiffusion(Net())
    shadow = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = moons(20000)
    for step in range(steps):
        loss = model(data[torch.randint(0, len(data), (batch,))])
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(shadow.parameters()), list(model.parameters()), 0.005)
        if step % 25 == 0:
            print("step", step, "loss", loss.item())
    return shadow


if __name__ == "__main__":
    train()
