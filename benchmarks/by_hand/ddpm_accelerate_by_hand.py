"""Small unconditional DDPM with Accelerate: hand-optimised version of ddpm_accelerate.py.

Same images, flips, noise and timesteps (same random streams), initial weights, AdamW, clipping and EMA.
"""
import argparse
import os
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm


class ShapesDataset(Dataset):
    """Coloured discs, squares and rings on a plain background; float images in [-1, 1]."""

    def __init__(self, n=4096, size=32, seed=0):
        rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[0:size, 0:size]
        self.images = np.empty((n, 3, size, size), dtype=np.uint8)
        for i in range(n):
            bg, fg = rng.randint(0, 100, 3), rng.randint(140, 256, 3)
            cx, cy, r = rng.randint(8, size - 8), rng.randint(8, size - 8), rng.randint(4, 9)
            kind = rng.randint(3)
            if kind == 0:
                m = (xx - cx) ** 2 + (yy - cy) ** 2 <= r * r
            elif kind == 1:
                m = (abs(xx - cx) <= r) & (abs(yy - cy) <= r)
            else:
                d = (xx - cx) ** 2 + (yy - cy) ** 2
                m = (d <= r * r) & (d >= (r - 3) ** 2)
            self.images[i] = np.where(m[None], fg[:, None, None], bg[:, None, None])

    def __len__(self):
        return len(self.images)

    def __getitems__(self, idx):
        imgs = torch.from_numpy(self.images[idx])
        flip = torch.tensor([torch.rand(1).item() for _ in idx]) < 0.5
        imgs[flip] = imgs[flip].flip(3)
        return imgs.float().div_(127.5).sub_(1.0)


def as_is(batch):
    return batch


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, t_dim):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.t_proj = nn.Linear(t_dim, c_out)
        self.norm2 = nn.GroupNorm(8, c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.t_proj(F.silu(t))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class AttentionBlock(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.proj = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        # channels last: (b, h*w, 3c) is a view
        qkv = self.qkv(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return x + self.proj(out)


class UNet(nn.Module):
    def __init__(self, ch=32, mults=(1, 2, 4), t_dim=128):
        super().__init__()
        self.ch = ch
        self.t_mlp = nn.Sequential(nn.Linear(ch, t_dim), nn.SiLU(), nn.Linear(t_dim, t_dim))
        self.conv_in = nn.Conv2d(3, ch, 3, padding=1)
        widths = [ch * m for m in mults]
        self.downs = nn.ModuleList()
        c = ch
        for i, w in enumerate(widths):
            self.downs.append(nn.ModuleDict({
                "res1": ResBlock(c, w, t_dim),
                "attn": AttentionBlock(w) if i == 1 else nn.Identity(),
                "down": nn.Conv2d(w, w, 3, stride=2, padding=1) if i < len(widths) - 1 else nn.Identity(),
            }))
            c = w
        self.mid1 = ResBlock(c, c, t_dim)
        self.mid_attn = AttentionBlock(c)
        self.mid2 = ResBlock(c, c, t_dim)
        self.ups = nn.ModuleList()
        for i, w in reversed(list(enumerate(widths))):
            self.ups.append(nn.ModuleDict({
                "res1": ResBlock(c + w, w, t_dim),
                "attn": AttentionBlock(w) if i == 1 else nn.Identity(),
                "up": nn.Conv2d(w, w, 3, padding=1) if i > 0 else nn.Identity(),
            }))
            c = w
        self.norm_out = nn.GroupNorm(8, c)
        self.conv_out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.t_mlp(timestep_embedding(t, self.ch))
        h = self.conv_in(x)
        skips = []
        for d in self.downs:
            h = d["attn"](d["res1"](h, t))
            skips.append(h)
            h = d["down"](h)
        h = self.mid2(self.mid_attn(self.mid1(h, t)), t)
        for i, u in enumerate(self.ups):
            h = torch.cat([h, skips.pop()], dim=1)
            h = u["attn"](u["res1"](h, t))
            if i < len(self.ups) - 1:
                h = F.interpolate(h, scale_factor=2, mode="nearest")
                h = u["up"](h)
        return self.conv_out(F.silu(self.norm_out(h)))


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.model = copy.deepcopy(model).eval()
        for p in self.model.parameters():
            p.requires_grad_(False)
        self.ema_params = [p.data for p in self.model.parameters()]
        self.params = [p.data for p in model.parameters()]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.ema_params, self.params, 1 - self.decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=64)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--num_timesteps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision="no")
    set_seed(args.seed)
    dataset = ShapesDataset()
    loader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True, drop_last=True, collate_fn=as_is)
    model = UNet()
    if os.environ.get("CL", "1") == "1":
        model = model.to(memory_format=torch.channels_last)
    accelerator.print(f"parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ema = EMA(accelerator.unwrap_model(model))

    def loss_of(xt, t, noise):
        with torch.autocast("cpu", torch.bfloat16, enabled=os.environ.get("BF", "1") == "1"):
            pred = model(xt, t)
        return F.mse_loss(pred.float(), noise)

    if os.environ.get("CO", "1") == "1":
        loss_of = torch.compile(loss_of, dynamic=False)

    betas = torch.linspace(1e-4, 0.02, args.num_timesteps, device=accelerator.device)
    alphas_bar = torch.cumprod(1 - betas, dim=0)

    history = []
    for epoch in range(args.num_epochs):
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=not accelerator.is_local_main_process)
        for x0 in bar:
            noise = torch.randn_like(x0)
            t = torch.randint(0, args.num_timesteps, (x0.size(0),), device=x0.device)
            a = alphas_bar[t].view(-1, 1, 1, 1)
            xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
            loss = loss_of(xt, t, noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            ema.update()
            history.append(loss.item())
            bar.set_postfix(loss=history[-1])
    n = len(history) // 4
    for i in range(4):
        accelerator.print(f"steps {i * n:3d}-{(i + 1) * n:3d}: mean loss {np.mean(history[i * n:(i + 1) * n]):.4f}")
    accelerator.wait_for_everyone()
    torch.save(ema.model.state_dict(), "ddpm_ema.pt")


if __name__ == "__main__":
    main()
