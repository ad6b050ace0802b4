"""Character level GPT trained on the standard library."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    block: int = 128
    dim: int = 128
    heads: int = 4
    layers: int = 3
    batch: int = 8
    steps: int = 90
    lr: float = 3e-4
    window: int = 64


def read_corpus(limit=400_000):
    root = Path(os.__file__).parent
    text = ""
    for p in sorted(root.glob("*.py")):
        text += p.read_text(encoding="utf-8", errors="ignore")
        if len(text) > limit:
            break
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    return torch.tensor([lut[c] for c in text[:limit]]), len(chars)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.att = Attention(cfg)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim)
        )

    def forward(self, x, mask):
        x = x + self.att(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.block, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.ln = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, vocab)

    def build_mask(self, T):
        m = torch.zeros(T, T, dtype=torch.bool)
        for i in range(T):
            for j in range(T):
                if j <= i and i - j < self.cfg.window:
                    m[i, j] = True
        return m

    def forward(self, idx, targets):
        T = idx.shape[1]
        mask = self.build_mask(T)
        x = self.tok(idx) + self.pos.weight[:T]
        for b in self.blocks:
            x = b(x, mask)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(cfg):
    data, vocab = read_corpus()
    model = GPT(cfg, vocab)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    offsets = torch.arange(cfg.block)
    for it in range(cfg.steps):
        start = torch.randint(0, len(data) - cfg.block - 1, (cfg.batch, 1))
        x, y = data[start + offsets], data[start + offsets + 1]
        loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 10 == 0:
            print(f"iter {it:4d} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    a = parser.parse_args()
    torch.manual_seed(1337)
    train(Config(steps=a.steps))
