"""Masked-token pretraining of a small encoder on Python sources."""
import glob
import os
import re
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 6000
    dim: int = 128
    heads: int = 4
    layers: int = 2
    seq: int = 64
    batch: int = 16
    mask_prob: float = 0.15
    lr: float = 5e-4
    warmup: int = 40
    steps: int = 200
    log_every: int = 20
    seed: int = 11


PAD, UNK, MASK = 0, 1, 2


def load_tokens(cfg):
    words = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:150]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            words.extend(re.findall(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]", f.read()))
    common = [w for w, _ in Counter(words).most_common(cfg.vocab - 3)]
    index = {w: i + 3 for i, w in enumerate(common)}
    return torch.tensor([index.get(w, UNK) for w in words])


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Parameter(torch.randn(cfg.seq, cfg.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            cfg.dim, cfg.heads, cfg.dim * 4, dropout=0.1, activation="gelu",
            batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, ids):
        return self.norm(self.blocks(self.tok(ids) + self.pos))


class MaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.transform = nn.Sequential(nn.Linear(cfg.dim, cfg.dim), nn.GELU(), nn.LayerNorm(cfg.dim))
        self.decoder = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids, labels):
        hidden = self.encoder(ids)
        scores = self.decoder(self.transform(hidden))
        loss = F.cross_entropy(scores.view(-1, scores.size(-1)), labels.view(-1), ignore_index=-100)
        return loss


def corrupt(ids, cfg, gen):
    labels = ids.clone()
    picked = torch.rand(ids.shape, generator=gen) < cfg.mask_prob
    labels[~picked] = -100
    roll = torch.rand(ids.shape, generator=gen)
    out = ids.clone()
    out[picked & (roll < 0.8)] = MASK
    swap = picked & (roll >= 0.8) & (roll < 0.9)
    out[swap] = torch.randint(3, cfg.vocab, (int(swap.sum()),), generator=gen)
    return out, labels


def batches(stream, cfg, gen):
    span = torch.arange(cfg.seq)
    while True:
        start = torch.randint(0, len(stream) - cfg.seq, (cfg.batch, 1), generator=gen)
        yield corrupt(stream[start + span], cfg, gen)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    stream = load_tokens(cfg)
    model = MaskedLM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / cfg.warmup))
    print(f"{len(stream)} tokens, {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")

    running = 0.0
    for step, (ids, labels) in zip(range(1, cfg.steps + 1), batches(stream, cfg, gen)):
        loss = model(ids, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running += loss.item()
        if step % cfg.log_every == 0:
            print(f"step {step:4d}  loss {running / cfg.log_every:.3f}")
            running = 0.0


if __name__ == "__main__":
    main()
