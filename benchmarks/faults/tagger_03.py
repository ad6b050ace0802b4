import random
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Cfg:
    vocab: int = 3000
    tags: int = 9
    dim: int = 128
    length: int = 64
    batch: int = 16
    layers: int = 3
    steps: int = 48


class Norm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.gain, self.shift, self.eps = (
            nn.Parameter(torch.ones(dim)),
            nn.Parameter(torch.zeros(dim)),
            eps,
        )

    def forward(self, x):
        out = []
        for t in range(x.shape[1]):
            row = x[:, t]
            mean = row.mean(-1, keepdim=True)
            var = ((row - mean) ** 2).mean(-1, keepdim=True)
            out.append((row - mean) / torch.sqrt(var + self.eps) * self.gain + self.shift)
        return torch.stack(out, 1)


class Mixer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = Norm(cfg.dim), Norm(cfg.dim)
        self.att = nn.MultiheadAttention(cfg.dim, 4, batch_first=True)
        self.ff = nn.Sequential(
            nn.Linear(cfg.dim, 3 * cfg.dim), nn.GELU(), nn.Linear(3 * cfg.dim, cfg.dim)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.word = nn.Embedding(cfg.vocab, cfg.dim)
        self.place = nn.Parameter(torch.randn(cfg.length, cfg.dim) * 0.02)
        self.body = nn.Sequential(*[Mixer(cfg) for _ in range(cfg.layers)])
        self.tag = nn.Linear(cfg.dim, cfg.tags)

    def forward(self, ids):
        return self.tag(self.body(self.word(ids) + self.place))


def stream(cfg):
    """The tag depends on the word and on the word before."""
    table = torch.randint(0, cfg.tags, (cfg.vocab,))
    while True:
        ids = torch.randint(0, cfg.vocab, (cfg.batch, cfg.length))
        tags = (table[ids] + table[ids.roll(1, 1)]) % cfg.tags
        yield ids, tags


def fit(cfg):
    torch.manual_seed(random.randrange(100))
    model = Model(cfg)
    opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
    for n, (ids, tags) in zip(range(cfg.steps), stream(cfg)):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
        loss.backward()
        opt.step()
        if n % 14 == 0:
            print(n, f"{loss.item():.4f}")
    return model


if __name__ == "__main__":
    fit(Cfg())
