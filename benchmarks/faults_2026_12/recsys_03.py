import random

import torch
import torch.nn.functional as F
from torch import nn


class Interactions:
    def __init__(self, users=2000, items=1500, per_user=60, seed=0):
        rng = random.Random(seed)
        self.users, self.items = users, items
        self.seen = [
            {(u * 3 + rng.randrange(400)) % items for _ in range(per_user)} for u in range(users)
        ]
        self.pairs = [(u, i) for u, s in enumerate(self.seen) for i in s]

    def draw(self, size, negatives):
        users, positives, others = [], [], []
        for u, i in random.choices(self.pairs, k=size):
            row = []
            while len(row) < negatives:
                j = random.randrange(self.items)
                if j not in self.seen[u] and j not in row:
                    row.append(j)
            users.append(u)
            positives.append(i)
            others.append(row)
        return torch.tensor(users), torch.tensor(positives), torch.tensor(others)


class NeuMF(nn.Module):
    def __init__(self, users, items, dim=32):
        super().__init__()
        self.u, self.i = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32 + dim, 1)

    def forward(self, u, i):
        u, i = self.u(u), self.i(i)
        u = u.expand_as(i)
        return self.out(torch.cat([self.mlp(torch.cat([u, i], -1)), u * i], -1)).squeeze(-1)


def main():
    random.seed(0)
    torch.manual_seed(0)
    data = Interactions()
    model = NeuMF(data.users, data.items)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(160):
        u, pos, neg = data.draw(1024, 12)
        scores = model(u.unsqueeze(1), torch.cat([pos.unsqueeze(1), neg], 1))
        loss = -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(step, loss.item())


main()
