"""Contrastive sentence embeddings: two noisy views of each generated sentence."""
import os
import random
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    vocab: int = 2500
    topics: int = 60
    sentences: int = 3000
    batch: int = 32
    dim: int = 96
    layers: int = 2
    epochs: int = 3
    lr: float = 8e-4
    tau: float = 0.07
    drop_words: float = 0.15
    momentum: float = 0.995
    probe_every: int = 50
    seed: int = 19


class Sentences(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        self.topic = rng.integers(0, cfg.topics, cfg.sentences)
        banks = rng.integers(2, cfg.vocab, (cfg.topics, 60))
        self.rows = []
        for t in self.topic:
            n = rng.integers(22, 28)
            own = rng.choice(banks[t], n)
            any_word = rng.integers(2, cfg.vocab, n)
            self.rows.append(torch.from_numpy(np.where(rng.random(n) < 0.5, own, any_word)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class TwoViews:
    def __init__(self, drop):
        self.drop = drop

    def __call__(self, rows):
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        views = ids.repeat(2, 1)
        hide = (torch.rand(views.shape) < self.drop) & (views != 0)
        return views.masked_fill(hide, 1)


class Encoder(nn.Module):
    def __init__(self, cfg, longest=32):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(longest, cfg.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(cfg.dim, 4, 3 * cfg.dim, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)

    def forward(self, ids):
        pad = ids == 0
        h = self.body(self.tok(ids) + self.pos[:ids.size(1)], src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        return F.normalize((h * keep).sum(1) / keep.sum(1), dim=-1)


class Average:
    """Exponential moving average of the weights, for evaluation."""

    def __init__(self, model, momentum):
        self.momentum = momentum
        self.live = list(model.parameters())
        self.kept = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.kept, self.live, 1 - self.momentum)


class ContrastiveTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = Sentences(cfg)
        self.loader = DataLoader(self.data, cfg.batch, shuffle=True, drop_last=True,
                                 collate_fn=TwoViews(cfg.drop_words))
        self.model = Encoder(cfg)
        self.average = Average(self.model, cfg.momentum)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(
            self.opt, cfg.lr, total_steps=cfg.epochs * len(self.loader))
        self.folder = tempfile.mkdtemp(prefix="contrast_")
        self.step = 0

    def loss(self, z):
        n = len(z)
        sim = z @ z.T / self.cfg.tau
        sim.fill_diagonal_(float("-inf"))
        return F.cross_entropy(sim, torch.arange(n).roll(n // 2))

    @torch.no_grad()
    def probe(self, n=64):
        self.model.eval()
        ids = nn.utils.rnn.pad_sequence(self.data.rows[:n], batch_first=True)
        sim = self.model(ids)
        sim = (sim @ sim.T).numpy()
        self.model.train()
        same = self.data.topic[:n, None] == self.data.topic[None, :n]
        upper = np.triu_indices(n, 1)
        return spearmanr(sim[upper], same[upper]).statistic

    def epoch(self, number):
        for views in self.loader:
            loss = self.loss(self.model(views))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            self.average.update()
            self.step += 1
            if self.step % self.cfg.probe_every == 0:
                print(f"step {self.step} loss {loss.item():.4f} spearman {self.probe():.3f}")
        torch.save({"weights": self.average.kept, "epoch": number}, os.path.join(self.folder, "average.pt"))


def main():
    cfg = Settings()
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    trainer = ContrastiveTrainer(cfg)
    for number in range(cfg.epochs):
        trainer.epoch(number)


if __name__ == "__main__":
    main()
