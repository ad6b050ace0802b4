"""Message passing on random graphs without any graph library: index_add_ does the scatter."""

import argparse
import random

import numpy as np
import torch
from torch import nn


def random_graph(rng):
    """A geometric graph; the target is its number of triangles, scaled."""
    n = int(rng.integers(12, 40))
    pos = rng.random((n, 2))
    dist = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
    adj = (dist < 0.3) & (dist > 0)
    triangles = np.trace(np.linalg.matrix_power(adj.astype(int), 3)) / 6
    src, dst = np.nonzero(adj)
    x = np.concatenate([pos, adj.sum(1, keepdims=True) / 10], axis=1)
    return (
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(np.stack([src, dst]), dtype=torch.long),
        float(np.log1p(triangles)),
    )


def collate(graphs):
    xs, edges, batch, ys = [], [], [], []
    offset = 0
    for i, (x, e, y) in enumerate(graphs):
        xs.append(x)
        edges.append(e + offset)
        batch.append(torch.full((len(x),), i, dtype=torch.long))
        ys.append(y)
        offset += len(x)
    return torch.cat(xs), torch.cat(edges, dim=1), torch.cat(batch), torch.tensor(ys)


class Conv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.update = nn.GRUCell(dim, dim)

    def forward(self, h, edges):
        src, dst = edges
        m = self.message(torch.cat([h[src], h[dst]], dim=-1))
        agg = torch.zeros_like(h).index_add_(0, dst, m)
        return self.update(agg, h)


class GNN(nn.Module):
    def __init__(self, dim=64, layers=3):
        super().__init__()
        self.embed = nn.Linear(3, dim)
        self.convs = nn.ModuleList(Conv(dim) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x, edges, batch, n_graphs):
        h = self.embed(x)
        for conv in self.convs:
            h = conv(h, edges)
        pooled = torch.zeros(n_graphs, h.shape[1]).scatter_add_(0, batch[:, None].expand_as(h), h)
        return self.head(pooled / 20).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    rng = np.random.default_rng(11)
    graphs = [random_graph(rng) for _ in range(1500)]
    loader = torch.utils.data.DataLoader(graphs, 32, shuffle=True, collate_fn=collate)
    model = GNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while step < args.steps:
        for x, edges, batch, y in loader:
            loss = nn.functional.mse_loss(model(x, edges, batch, len(y)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step <= 100 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
