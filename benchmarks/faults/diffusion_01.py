import argparse
import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    a = t[:, None].float() * freqs[None]
    return torch.cat([a.cos(), a.sin()], 1)


class Denoiser(nn.Module):
    def __init__(self, data_dim=2, width=1024, depth=6):
        super().__init__()
        self.inp = nn.Linear(data_dim, width)
        self.time = nn.Sequential(nn.Linear(128, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())
            for _ in range(depth)
        )
        self.out = nn.Linear(width, data_dim)

    def forward(self, x, t):
        h = self.inp(x) + self.time(timestep_embedding(t, 128))
        for b in self.blocks:
            h = h + b(h)
        return self.out(h)


def swiss_roll(n):
    u = 1.5 * math.pi * (1 + 2 * torch.rand(n))
    return torch.stack([u * u.cos(), u * u.sin()], 1) / 10 + 0.02 * torch.randn(n, 2)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model)

    def step(self, model):
        fresh = copy.deepcopy(model)
        for new, old in zip(fresh.parameters(), self.model.parameters()):
            new.data = self.decay * old.data + (1 - self.decay) * new.data
        self.model = fresh


def main():
    ap = argparse.ArgumentParser("diffusion on points")
    ap.add_argument("--steps", default=80, type=int)
    ap.add_argument("--batch", default=32, type=int)
    ap.add_argument("--T", default=200, type=int)
    args = ap.parse_args()
    torch.manual_seed(0)
    betas = torch.linspace(1e-4, 0.03, args.T)
    abar = (1 - betas).cumprod(0)
    model = Denoiser()
    averages = [EMA(model, 0.99), EMA(model, 0.999)]
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(args.steps):
        x0 = swiss_roll(args.batch)
        t = torch.randint(0, args.T, (args.batch,))
        eps = torch.randn_like(x0)
        a = abar[t][:, None]
        xt = a.sqrt() * x0 + (1 - a).sqrt() * eps
        loss = F.mse_loss(model(xt, t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for ema in averages:
            ema.step(model)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
