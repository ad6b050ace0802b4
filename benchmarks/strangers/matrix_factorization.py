"""Implicit-feedback recommender: matrix factorisation with negative sampling (BPR)."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Interactions(Dataset):
    """(user, liked item, item not seen): the negative is drawn anew each time."""

    def __init__(self, n_users, n_items, per_user):
        rng = np.random.default_rng(3)
        taste = rng.normal(size=(n_users, 6))
        kind = rng.normal(size=(n_items, 6))
        score = taste @ kind.T + rng.gumbel(size=(n_users, n_items))
        liked = np.argpartition(-score, per_user, axis=1)[:, :per_user]
        self.n_items = n_items
        self.pairs = [(u, int(i)) for u in range(n_users) for i in liked[u]]
        self.seen = [set(row.tolist()) for row in liked]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        user, item = self.pairs[index]
        negative = random.randrange(self.n_items)
        while negative in self.seen[user]:
            negative = random.randrange(self.n_items)
        return user, item, negative


class MF(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(-1) + self.bias(item).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    n_users, n_items = 2000, 1500
    dataset = Interactions(n_users, n_items, per_user=40)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = MF(n_users, n_items, dim=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    step = 0
    while step < args.steps:
        for user, pos, neg in loader:
            loss = -F.logsigmoid(model(user, pos) - model(user, neg)).mean()
            loss = loss + 1e-5 * (model.user.weight.pow(2).sum() + model.item.weight.pow(2).sum())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step <= 100 or step % 10 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
