"""DDPM on sklearn digits with a tiny residual network."""
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
log = logging.getLogger("ddpm")

T = 400
STEPS = 260
BATCH = 32


def cosine_alphas(steps):
    t = torch.linspace(0, 1, steps + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    betas = (1 - f[1:] / f[:-1]).clamp(max=0.999)
    return torch.cumprod(1 - betas, 0)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        half = dim // 2
        self.register_buffer("freqs", torch.exp(-math.log(10000) * torch.arange(half) / half))
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 2), nn.SiLU(), nn.Linear(dim * 2, dim))

    def forward(self, t):
        a = t[:, None].float() * self.freqs
        return self.mlp(torch.cat([a.sin(), a.cos()], 1))


class ResBlock(nn.Module):
    def __init__(self, name, cin, cout, tdim):
        super().__init__()
        self.label = name
        self.n1, self.n2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.t = nn.Linear(tdim, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x)))
        h = h + self.t(emb)[:, :, None, None]
        out = self.skip(x) + self.c2(F.silu(self.n2(h)))
        log.debug(f"{self.label}: in {x} out {out}")
        return out


class Denoiser(nn.Module):
    def __init__(self, w=32, tdim=64):
        super().__init__()
        self.time = TimeEmbedding(tdim)
        self.inp = nn.Conv2d(1, w, 3, padding=1)
        self.down = nn.ModuleList([ResBlock("down0", w, w, tdim), ResBlock("down1", w, 2 * w, tdim)])
        self.mid = ResBlock("mid", 2 * w, 2 * w, tdim)
        self.up = nn.ModuleList([ResBlock("up1", 4 * w, w, tdim), ResBlock("up0", 2 * w, w, tdim)])
        self.out = nn.Conv2d(w, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, t):
        emb = self.time(t)
        h = self.inp(x)
        skips = []
        for block in self.down:
            h = block(h, emb)
            skips.append(h)
            h = F.avg_pool2d(h, 2)
        h = self.mid(h, emb)
        for block in self.up:
            h = F.interpolate(h, scale_factor=2.0)
            h = block(torch.cat([h, skips.pop()], 1), emb)
        return self.out(F.silu(h))


@torch.no_grad()
def ddim_sample(model, abar, n=4, steps=20):
    model.eval()
    x = torch.randn(n, 1, 16, 16)
    ts = torch.linspace(T - 1, 0, steps).long()
    for i, t in enumerate(ts):
        eps = model(x, t.expand(n))
        x0 = ((x - (1 - abar[t]).sqrt() * eps) / abar[t].sqrt()).clamp(-1, 1)
        prev = abar[ts[i + 1]] if i + 1 < steps else torch.ones(())
        x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
    model.train()
    return x


def main():
    torch.manual_seed(5)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    images = F.interpolate(images, size=(16, 16), mode="bilinear", align_corners=False)
    abar = cosine_alphas(T)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=50)
    log.info("parameters: %d", sum(p.numel() for p in model.parameters()))
    for step in range(1, STEPS + 1):
        x0 = images[torch.randint(len(images), (BATCH,))]
        t = torch.randint(T, (BATCH,))
        a = abar[t][:, None, None, None]
        noise = torch.randn_like(x0)
        loss = F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        if step % 40 == 0:
            log.info("step %d loss %.4f", step, loss.item())
    log.info("sample mean %.3f", ddim_sample(model, abar).mean().item())


if __name__ == "__main__":
    main()
