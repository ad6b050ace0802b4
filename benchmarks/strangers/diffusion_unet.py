"""DDPM on 32x32 crops of photographs: a small UNet predicts the noise; EMA of the weights."""

import argparse
import copy
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_sample_images


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(emb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.mha = nn.MultiheadAttention(c, 4, batch_first=True)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).view(b, c, h * w).transpose(1, 2)
        y, _ = self.mha(y, y, y)
        return x + y.transpose(1, 2).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, base=32):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.conv_in = nn.Conv2d(3, base, 3, padding=1)
        self.down1 = ResBlock(base, base, emb)
        self.pool1 = nn.Conv2d(base, base, 3, stride=2, padding=1)
        self.down2 = ResBlock(base, base * 2, emb)
        self.pool2 = nn.Conv2d(base * 2, base * 2, 3, stride=2, padding=1)
        self.mid1 = ResBlock(base * 2, base * 4, emb)
        self.attn = SelfAttention(base * 4)
        self.mid2 = ResBlock(base * 4, base * 2, emb)
        self.up2 = ResBlock(base * 4, base, emb)
        self.up1 = ResBlock(base * 2, base, emb)
        self.norm_out = nn.GroupNorm(8, base)
        self.conv_out = nn.Conv2d(base, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.base))
        h1 = self.down1(self.conv_in(x), emb)
        h2 = self.down2(self.pool1(h1), emb)
        h = self.mid1(self.pool2(h2), emb)
        h = self.mid2(self.attn(h), emb)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = self.up2(torch.cat([h, h2], dim=1), emb)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = self.up1(torch.cat([h, h1], dim=1), emb)
        return self.conv_out(F.silu(self.norm_out(h)))


class EMA:
    def __init__(self, model, decay=0.995):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema, p in zip(self.model.parameters(), model.parameters(), strict=True):
            ema.mul_(self.decay).add_(p, alpha=1 - self.decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=320)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--timesteps", type=int, default=1000)
    args = ap.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    betas = torch.linspace(1e-4, 0.02, args.timesteps)
    alphas_bar = torch.cumprod(1 - betas, dim=0)
    photos = [
        torch.tensor(i.copy()).permute(2, 0, 1) / 127.5 - 1 for i in load_sample_images().images
    ]
    photos = [F.avg_pool2d(p, 4) for p in photos]

    def crops(n):
        out = []
        for _ in range(n):
            p = random.choice(photos)
            top = random.randint(0, p.shape[1] - 32)
            left = random.randint(0, p.shape[2] - 32)
            out.append(p[:, top : top + 32, left : left + 32])
        return torch.stack(out)

    model = UNet()
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(1, args.steps + 1):
        x0 = crops(args.batch)
        t = torch.randint(0, args.timesteps, (args.batch,))
        noise = torch.randn_like(x0)
        a = alphas_bar[t].view(-1, 1, 1, 1)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(xt, t), noise)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        ema.update(model)
        print(f"step {step} loss {loss.item():.8f}")


if __name__ == "__main__":
    main()
