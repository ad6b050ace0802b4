"""GraphSAGE, tuned: CSR graph and vectorised sampling without replacement (Floyd), no per node Python;
the outermost frontier is never relabelled or copied: the mean over its features is one embedding_bag
straight from the feature table; second layer mean likewise; dropout masks from raw random bits; fused Adam."""
from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    num_nodes: int = 40_000
    num_classes: int = 12
    feat_dim: int = 100
    avg_degree: int = 24
    hidden: int = 192
    fanouts: Tuple[int, ...] = (10, 10)
    batch_size: int = 512
    lr: float = 3e-3
    steps: int = 700
    seed: int = 7


class Graph:
    """Stochastic block model like co-purchase graph with noisy node features."""

    def __init__(self, cfg: Config):
        rng = np.random.default_rng(cfg.seed)
        n = cfg.num_nodes
        y = rng.integers(0, cfg.num_classes, n)
        order = np.argsort(y, kind="stable")
        start = np.searchsorted(y[order], np.arange(cfg.num_classes + 1))

        m = n * cfg.avg_degree // 2
        act = rng.pareto(2.5, n) + 1
        u = rng.choice(n, m, p=act / act.sum())
        r = rng.random(m)
        inside = order[(start[y[u]] + (rng.random(m) * (start[y[u] + 1] - start[y[u]])).astype(np.int64))]
        v = np.where(r < 0.3, inside, rng.integers(0, n, m))

        centers = rng.normal(size=(cfg.num_classes, cfg.feat_dim))
        x = 0.12 * centers[y] + rng.normal(size=(n, cfg.feat_dim))

        keep = u != v
        u, v = u[keep], v[keep]
        src, dst = np.concatenate([u, v]), np.concatenate([v, u])
        self.indices = dst[np.argsort(src, kind="stable")]
        self.deg = np.bincount(src, minlength=n)
        self.start = np.concatenate([[0], np.cumsum(self.deg)[:-1]])

        ids = rng.permutation(n)
        n_val = n // 20
        self.x, self.y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
        self.train_ids, self.val_ids = ids[n_val:], ids[:n_val]


class FastDropout:
    """Bernoulli noise from 16 random bits an element; torch's CPU bernoulli_ is serial, about 20 times slower"""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.SFC64(seed))

    def noise(self, shape, p, dtype=torch.float32):
        n = int(np.prod(shape))
        bits = self.rng.integers(0, 2 ** 64, (n + 3) // 4, dtype=np.uint64).view(np.int16)[:n]
        keep = torch.from_numpy(bits).view(shape) >= round(p * 65536) - 32768
        return keep.to(dtype).mul_(1 / (1 - p))

    def __call__(self, x, p, training=True):
        return x * self.noise(x.shape, p, x.dtype) if training and p > 0 else x


class Sampler:
    def __init__(self, graph: Graph, fanouts: Tuple[int, ...], seed: int):
        self.g = graph
        self.fanouts = fanouts
        self.rng = np.random.default_rng(seed)
        self.local = np.empty(len(graph.deg), dtype=np.int64)

    def neighbours(self, nodes: np.ndarray, k: int):
        """k distinct positions of every adjacency list (all of it when shorter): flat ids and offsets"""
        deg = self.g.deg[nodes]
        rnd = self.rng.random((k, len(nodes)), dtype=np.float32)
        pos = np.empty((k, len(nodes)), dtype=np.int64)
        for j in range(k):                      # Floyd's algorithm on all nodes at once
            top = deg - k + j
            t = (rnd[j] * (top + 1)).astype(np.int64)
            if j:
                t = np.where((pos[:j] == t).any(0), top, t)
            pos[j] = t
        short = deg <= k
        if short.any():
            pos[:, short] = np.arange(k)[:, None]
        nbr = pos.T + self.g.start[nodes][:, None]
        count = np.minimum(deg, k)
        if short.any():
            flat = self.g.indices[nbr[np.arange(k) < count[:, None]]]
        else:
            flat = self.g.indices[nbr.ravel()]
        return flat, np.cumsum(count) - count

    def __call__(self, seeds: np.ndarray):
        nbr2, off2 = self.neighbours(seeds, self.fanouts[0])
        local = self.local
        local[nbr2] = -1
        local[seeds] = np.arange(len(seeds))
        new = nbr2[local[nbr2] < 0]
        local[new] = np.arange(len(new))        # the last writer represents a repeated node
        new = new[local[new] == np.arange(len(new))]
        local[new] = len(seeds) + np.arange(len(new))
        nodes = np.concatenate([seeds, new])
        nbr1, off1 = self.neighbours(nodes, self.fanouts[1])
        t = torch.from_numpy
        return t(nodes), t(nbr1), t(off1), t(local[nbr2]), t(off2), self.g.y[t(seeds)]


class SAGEConv(nn.Module):
    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.lin_self = nn.Linear(in_dim, out_dim)
        self.lin_neigh = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x_self: Tensor, agg: Tensor) -> Tensor:
        w = torch.cat([self.lin_self.weight, self.lin_neigh.weight], 1)
        return F.linear(torch.cat([x_self, agg], 1), w, self.lin_self.bias)


class GraphSAGE(nn.Module):
    def __init__(self, in_dim: int, hidden: int, out_dim: int, dropout: float = 0.3):
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(in_dim, hidden), SAGEConv(hidden, hidden)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.p = dropout
        self.drop = FastDropout(torch.initial_seed())
        self.head = nn.Linear(hidden, out_dim)

    def forward(self, table: Tensor, nodes, nbr1, off1, nbr2, off2) -> Tensor:
        h = self.convs[0](table[nodes], F.embedding_bag(nbr1, table, off1, mode="mean"))
        h = self.drop(self.norms[0](h).relu_(), self.p, self.training)
        h = self.convs[1](h[:len(off2)], F.embedding_bag(nbr2, h, off2, mode="mean"))
        h = self.drop(self.norms[1](h).relu_(), self.p, self.training)
        return self.head(h)


class Trainer:
    def __init__(self, cfg: Config):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.graph = Graph(cfg)
        self.rng = np.random.default_rng(cfg.seed)
        self.sample = Sampler(self.graph, cfg.fanouts, cfg.seed)
        self.model = GraphSAGE(cfg.feat_dim, cfg.hidden, cfg.num_classes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr, fused=True)

    def evaluate(self) -> float:
        self.model.eval()
        correct = 0
        ids, b = self.graph.val_ids, self.cfg.batch_size
        with torch.inference_mode():
            for i in range(0, len(ids), b):
                *batch, y = self.sample(ids[i:i + b])
                correct += (self.model(self.graph.x, *batch).argmax(dim=1) == y).sum().item()
        self.model.train()
        return correct / len(ids)

    def fit(self) -> None:
        step, running = 0, torch.zeros(())
        b = self.cfg.batch_size
        self.model.train()
        while step < self.cfg.steps:
            ids = self.rng.permutation(self.graph.train_ids)
            for i in range(0, len(ids) - b + 1, b):
                *batch, y = self.sample(ids[i:i + b])
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(self.graph.x, *batch), y)
                loss.backward()
                self.optimizer.step()
                running += loss.detach()
                step += 1
                if step % 10 == 0:
                    print(f"step {step} loss {running.item() / 10:.4f}", flush=True)
                    running.zero_()
                if step >= self.cfg.steps:
                    break
            print(f"val acc {self.evaluate():.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    Trainer(Config(steps=ap.parse_args().steps)).fit()
