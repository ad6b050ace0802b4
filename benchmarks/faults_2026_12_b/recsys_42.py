"""BPR with a neural scorer for a grocery catalogue."""
import argparse
import random
from collections import defaultdict

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class Catalogue:
    def __init__(self, n_users, n_items, n_events, seed):
        rng = np.random.default_rng(seed)
        self.n_users, self.n_items = n_users, n_items
        group = rng.integers(0, 20, n_users)
        users = rng.integers(0, n_users, n_events)
        raw = (rng.beta(1.0, 2.0, n_events) * n_items).astype(np.int64)
        items = (raw + group[users] * (n_items // 20)) % n_items
        pairs = np.unique(np.stack([users, items], 1), axis=0)
        rng.shuffle(pairs)
        self.pairs = pairs


class NegativeSampler:
    def __init__(self, catalogue, per_positive, seed):
        self.n_items = catalogue.n_items
        self.k = per_positive
        self.random = random.Random(seed)
        self.bought = defaultdict(list)
        for u, i in catalogue.pairs.tolist():
            self.bought[u].append(i)

    def draw(self, user):
        owned = self.bought[user]
        picked = []
        while len(picked) < self.k:
            j = int(self.random.random() * self.n_items)
            if j not in owned:
                picked.append(j)
        return picked

    def __call__(self, users):
        return torch.tensor([self.draw(u) for u in users.tolist()])


class NeuralBPR(nn.Module):
    def __init__(self, n_users, n_items, dim=32, width=128):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.scorer = nn.Sequential(nn.Linear(3 * dim, width), nn.ReLU(),
                                    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, users, items):
        u = self.user(users).unsqueeze(1).expand(-1, items.shape[1], -1)
        v = self.item(items)
        return self.scorer(torch.cat([u, v, u * v], dim=-1)).squeeze(-1)


def epoch_batches(pairs, size, rng):
    order = rng.permutation(len(pairs))
    for s in range(0, len(order) - size + 1, size):
        chunk = torch.from_numpy(pairs[order[s:s + size]])
        yield chunk[:, 0], chunk[:, 1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=1400)
    p.add_argument("--items", type=int, default=6000)
    p.add_argument("--events", type=int, default=900_000)
    p.add_argument("--negatives", type=int, default=4)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()

    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)
    data = Catalogue(a.users, a.items, a.events, a.seed)
    negatives = NegativeSampler(data, a.negatives, a.seed)
    model = NeuralBPR(a.users, a.items)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"{len(data.pairs)} purchases")

    step = 0
    while step < a.steps:
        for users, pos in epoch_batches(data.pairs, a.batch, rng):
            neg = negatives(users)
            scores = model(users, torch.cat([pos.unsqueeze(1), neg], dim=1))
            loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 50 == 0:
                auc = (scores[:, :1] > scores[:, 1:]).float().mean().item()
                print(f"step {step} loss {loss.item():.4f} pairwise auc {auc:.3f}")
            if step >= a.steps:
                break


if __name__ == "__main__":
    main()
