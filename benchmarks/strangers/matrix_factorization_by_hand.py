"""matrix_factorization.py, by hand: the sampling is one array operation per batch, fused Adam."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def interactions(n_users, n_items, per_user):
    rng = np.random.default_rng(3)
    taste = rng.normal(size=(n_users, 6))
    kind = rng.normal(size=(n_items, 6))
    score = taste @ kind.T + rng.gumbel(size=(n_users, n_items))
    liked = torch.from_numpy(np.argpartition(-score, per_user, axis=1)[:, :per_user].copy())
    seen = torch.zeros(n_users, n_items, dtype=torch.bool)
    seen.scatter_(1, liked, True)
    users = torch.arange(n_users).repeat_interleave(per_user)
    return users, liked.flatten(), seen.flatten()


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def negatives(user, seen, n_items):
    """An item that the user has not seen, for each; drawn again where it was seen."""
    rows = user * n_items
    found = torch.randint(n_items, user.shape)
    while True:
        again = seen[rows + found].nonzero().squeeze(1)
        if not len(again):
            return found
        found[again] = torch.randint(n_items, again.shape)


class MF(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, user, pos, neg):
        """By how much the liked one is preferred."""
        difference = ((self.item(pos) - self.item(neg)) * self.user(user)).sum(-1)
        return difference + (self.bias(pos) - self.bias(neg)).squeeze(-1)


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
    users, liked, seen = interactions(n_users, n_items, per_user=40)
    model = MF(n_users, n_items, dim=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)

    step = 0
    while step < args.steps:
        for index in shuffled(len(users)).split(args.batch_size):
            user, pos = users[index], liked[index]
            neg = negatives(user, seen, n_items)
            loss = -F.logsigmoid(model(user, pos, neg)).mean()
            flat_user, flat_item = model.user.weight.flatten(), model.item.weight.flatten()
            loss = loss + 1e-5 * (flat_user.dot(flat_user) + flat_item.dot(flat_item))
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
