from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import List, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


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


@dataclass
class Graph:
    adj: List[List[int]]
    x: Tensor
    y: Tensor
    train_ids: List[int] = field(default_factory=list)
    val_ids: List[int] = field(default_factory=list)


def build_graph(cfg: Config) -> Graph:
    """Stochastic block model like co-purchase graph with noisy node features."""
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

    adj: List[List[int]] = [[] for _ in range(n)]
    for a, b in zip(u.tolist(), v.tolist()):
        if a != b:
            adj[a].append(b)
            adj[b].append(a)

    ids = rng.permutation(n).tolist()
    n_val = n // 20
    return Graph(adj, torch.tensor(x, dtype=torch.float32), torch.tensor(y), ids[n_val:], ids[:n_val])


class NodeDataset(Dataset):
    def __init__(self, ids: List[int]):
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> int:
        return self.ids[i]


class NeighborCollator:
    """Samples a block (bipartite graph) per layer, from the seeds outwards."""

    def __init__(self, graph: Graph, fanouts: Tuple[int, ...]):
        self.graph = graph
        self.fanouts = fanouts

    def sample_layer(self, nodes: List[int], k: int):
        local = {n: i for i, n in enumerate(nodes)}
        all_nodes = list(nodes)
        src, dst = [], []
        for i, n in enumerate(nodes):
            neigh = self.graph.adj[n]
            if len(neigh) > k:
                neigh = random.sample(neigh, k)
            for m in neigh:
                if m not in local:
                    local[m] = len(all_nodes)
                    all_nodes.append(m)
                src.append(local[m])
                dst.append(i)
        return all_nodes, torch.tensor([src, dst], dtype=torch.long)

    def __call__(self, batch: List[int]):
        nodes = list(batch)
        blocks = []
        for k in self.fanouts:
            n_dst = len(nodes)
            nodes, edge_index = self.sample_layer(nodes, k)
            blocks.insert(0, (edge_index, n_dst))
        x = self.graph.x[torch.tensor(nodes)]
        y = self.graph.y[torch.tensor(batch)]
        return x, blocks, y


class SAGEConv(nn.Module):
    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.lin_self = nn.Linear(in_dim, out_dim)
        self.lin_neigh = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, n_dst: int) -> Tensor:
        src, dst = edge_index
        agg = torch.zeros(n_dst, x.shape[1], device=x.device)
        agg = agg.scatter_add(0, dst.unsqueeze(1).expand(-1, x.shape[1]), x[src])
        count = torch.zeros(n_dst, device=x.device).scatter_add(0, dst, torch.ones_like(dst, dtype=torch.float))
        agg = agg / count.clamp(min=1).unsqueeze(1)
        return self.lin_self(x[:n_dst]) + self.lin_neigh(agg)


class GraphSAGE(nn.Module):
    def __init__(self, in_dim: int, hidden: int, out_dim: int, dropout: float = 0.3):
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(in_dim, hidden), SAGEConv(hidden, hidden)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, out_dim)

    def forward(self, x: Tensor, blocks) -> Tensor:
        for conv, norm, (edge_index, n_dst) in zip(self.convs, self.norms, blocks):
            x = self.dropout(torch.relu(norm(conv(x, edge_index, n_dst))))
        return self.head(x)


class Trainer:
    def __init__(self, cfg: Config):
        random.seed(cfg.seed)
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.graph = build_graph(cfg)
        collate = NeighborCollator(self.graph, cfg.fanouts)
        self.train_loader = DataLoader(NodeDataset(self.graph.train_ids), batch_size=cfg.batch_size,
                                       shuffle=True, drop_last=True, collate_fn=collate)
        self.val_loader = DataLoader(NodeDataset(self.graph.val_ids), batch_size=cfg.batch_size,
                                     collate_fn=collate)
        self.model = GraphSAGE(cfg.feat_dim, cfg.hidden, cfg.num_classes)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def evaluate(self) -> float:
        self.model.eval()
        correct = total = 0
        with torch.no_grad():
            for x, blocks, y in self.val_loader:
                pred = self.model(x, blocks).argmax(dim=1)
                correct += (pred == y).sum().item()
                total += len(y)
        self.model.train()
        return correct / total

    def fit(self) -> None:
        step, running = 0, []
        self.model.train()
        while step < self.cfg.steps:
            for x, blocks, y in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x, blocks), y)
                loss.backward()
                self.optimizer.step()
                running.append(loss.item())
                step += 1
                if step % 10 == 0:
                    print(f"step {step} loss {sum(running) / len(running):.4f}", flush=True)
                    running = []
                if step >= self.cfg.steps:
                    break
            print(f"val acc {self.evaluate():.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    Trainer(Config(steps=ap.parse_args().steps)).fit()
