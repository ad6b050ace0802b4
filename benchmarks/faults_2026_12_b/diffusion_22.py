"""Flow-matching model for 16x16 digits, trained with Accelerate."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Setup:
    width: int = 32
    batch: int = 32
    epochs: int = 7
    lr: float = 1e-3
    ema: float = 0.995
    clip: float = 1.0


class FiLMBlock(nn.Module):
    def __init__(self, c, cond):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.film = nn.Linear(cond, 2 * c)
        nn.init.zeros_(self.c2.weight)

    def forward(self, x, e):
        s, b = self.film(e)[:, :, None, None].chunk(2, 1)
        return x + self.c2(F.silu(self.c1(F.silu(self.norm(x) * (1 + s) + b))))


class Velocity(nn.Module):
    def __init__(self, w, classes=10, cond=64):
        super().__init__()
        self.label = nn.Embedding(classes, cond)
        self.time = nn.Sequential(nn.Linear(1, cond), nn.SiLU(), nn.Linear(cond, cond))
        self.inp = nn.Conv2d(1, w, 3, padding=1)
        self.hi = FiLMBlock(w, cond)
        self.down = nn.Conv2d(w, 2 * w, 4, 2, 1)
        self.lo = nn.ModuleList([FiLMBlock(2 * w, cond) for _ in range(3)])
        self.up = nn.ConvTranspose2d(2 * w, w, 4, 2, 1)
        self.hi2 = FiLMBlock(w, cond)
        self.out = nn.Conv2d(w, 1, 3, padding=1)

    def forward(self, x, t, y):
        e = self.label(y) + self.time(t[:, None])
        h = self.hi(self.inp(x), e)
        z = self.down(h)
        for block in self.lo:
            z = block(z, e)
        return self.out(F.silu(self.hi2(self.up(z) + h, e)))


def flow_loss(model, x1, y):
    x0 = torch.randn_like(x1)
    t = torch.rand(len(x1))
    xt = torch.lerp(x0, x1, t[:, None, None, None])
    return F.mse_loss(model(xt, t, y), x1 - x0)


@torch.no_grad()
def validation(model, loader):
    model.eval()
    losses = [flow_loss(model, x, y) for x, y in loader]
    model.train()
    return torch.stack(losses).mean().item()


@torch.no_grad()
def euler(model, y, steps=10):
    x = torch.randn(len(y), 1, 16, 16)
    for i in range(steps):
        x = x + model(x, torch.full((len(y),), i / steps), y) / steps
    return x


def main(cfg):
    set_seed(3)
    acc = Accelerator(cpu=True)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 8 - 1
    x = F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)
    full = TensorDataset(x, torch.tensor(d.target))
    train, val = random_split(full, [1600, len(full) - 1600], torch.Generator().manual_seed(0))
    model = Velocity(cfg.width)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    loader = DataLoader(train, cfg.batch, shuffle=True, drop_last=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))
    model, opt, loader, val_loader, sched = acc.prepare(model, opt, loader, DataLoader(val, 64), sched)
    ema = AveragedModel(acc.unwrap_model(model), multi_avg_fn=get_ema_multi_avg_fn(cfg.ema))
    for epoch in range(cfg.epochs):
        for i, (xb, yb) in enumerate(loader):
            loss = flow_loss(model, xb, yb)
            opt.zero_grad()
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), cfg.clip)
            opt.step()
            sched.step()
            ema.update_parameters(acc.unwrap_model(model))
            if i % 25 == 0:
                acc.print(f"epoch {epoch} it {i} loss {loss.item():.4f}")
        acc.print(f"epoch {epoch} ema val {validation(ema, val_loader):.4f}")
        acc.save(ema.state_dict(), "/tmp/flow_ema.pt")
    acc.print("sample std", euler(ema, torch.arange(10)).std().item())


if __name__ == "__main__":
    main(Setup())
