"""DDPM on made-up pictures of 32 x 32: a U-Net predicts the noise; EMA of the weights."""

import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TIMESTEPS = 1000


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
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


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3 * self.heads, c // self.heads, -1).chunk(3, 1)
        weights = torch.softmax(q.transpose(2, 3) @ k / math.sqrt(c // self.heads), dim=-1)
        y = v @ weights.transpose(2, 3)
        return x + self.out(y.reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.conv_in = nn.Conv2d(3, base, 3, padding=1)
        self.down1 = nn.ModuleList([ResBlock(base, base, emb), ResBlock(base, base, emb)])
        self.pool1 = nn.Conv2d(base, base, 3, stride=2, padding=1)
        self.down2 = nn.ModuleList(
            [ResBlock(base, 2 * base, emb), ResBlock(2 * base, 2 * base, emb)]
        )
        self.attn2 = Attention(base * 2)
        self.pool2 = nn.Conv2d(base * 2, base * 2, 3, stride=2, padding=1)
        self.mid1 = ResBlock(base * 2, base * 2, emb)
        self.attn = Attention(base * 2)
        self.mid2 = ResBlock(base * 2, base * 2, emb)
        self.up2 = nn.ModuleList([ResBlock(base * 4, base * 2, emb), ResBlock(base * 2, base, emb)])
        self.up1 = nn.ModuleList([ResBlock(base * 2, base, emb), ResBlock(base, base, emb)])
        self.norm_out = nn.GroupNorm(8, base)
        self.conv_out = nn.Conv2d(base, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.base))
        h1 = self.conv_in(x)
        for block in self.down1:
            h1 = block(h1, emb)
        h2 = self.pool1(h1)
        for block in self.down2:
            h2 = block(h2, emb)
        h2 = self.attn2(h2)
        h = self.mid1(self.pool2(h2), emb)
        h = self.mid2(self.attn(h), emb)
        h = torch.cat([F.interpolate(h, scale_factor=2, mode="nearest"), h2], dim=1)
        for block in self.up2:
            h = block(h, emb)
        h = torch.cat([F.interpolate(h, scale_factor=2, mode="nearest"), h1], dim=1)
        for block in self.up1:
            h = block(h, emb)
        return self.conv_out(F.silu(self.norm_out(h)))


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema, p in zip(self.model.parameters(), model.parameters(), strict=True):
            ema.mul_(self.decay).add_(p, alpha=1 - self.decay)


def sizes(small):
    """(pictures, batch, width)"""
    return (64, 4, 16) if small else (8192, 64, 128)


def make_pictures(count):
    coarse = torch.rand(count, 3, 4, 4) * 2 - 1
    return F.interpolate(coarse, size=32, mode="bilinear", align_corners=False)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count, batch, base = sizes(args.small)
    loader = DataLoader(TensorDataset(make_pictures(count)), batch, shuffle=True, drop_last=True)
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS)
    alphas_bar = torch.cumprod(1 - betas, dim=0).to(device)

    model = UNet(base).to(device)
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    step = 0
    while step < args.steps:
        for (x0,) in loader:
            x0 = x0.to(device)
            t = torch.randint(0, TIMESTEPS, (len(x0),), device=device)
            noise = torch.randn_like(x0)
            a = alphas_bar[t].view(-1, 1, 1, 1)
            xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
            loss = F.mse_loss(model(xt, t), noise)
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            ema.update(model)
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
