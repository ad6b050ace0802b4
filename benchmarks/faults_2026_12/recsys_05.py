"""Two-tower retrieval with sparse embedding bags and in-batch negatives."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, ids, dim=96, width=320, out=96):
        super().__init__()
        self.bag = nn.EmbeddingBag(ids, dim, mode="mean", sparse=True)
        self.net = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, ids):
        return F.normalize(self.net(self.bag(ids)), dim=1)


class Retrieval(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.query, self.item = Tower(items), Tower(items)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, history, candidate):
        return self.scale.exp() * self.query(history) @ self.item(candidate).T


def batches(items, size, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    spread = torch.arange(10)
    for _ in range(steps):
        taste = torch.randint(0, items, (size, 1), generator=g)
        noise = torch.randint(0, 30, (size, 11), generator=g)
        yield (taste + 3 * spread + noise[:, :10]) % items, (taste + noise[:, 10:]) % items


def main(items=8000, size=640, steps=160):
    torch.manual_seed(0)
    model = Retrieval(items)
    sparse = [model.query.bag.weight, model.item.bag.weight]
    dense = [*model.query.net.parameters(), *model.item.net.parameters(), model.scale]
    optimizers = [torch.optim.Adam(dense, lr=1e-3), torch.optim.SparseAdam(sparse, lr=5e-3)]
    labels = torch.arange(size)
    for step, (history, candidate) in enumerate(batches(items, size, steps)):
        loss = F.cross_entropy(model(history, candidate), labels)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        if step % 40 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
