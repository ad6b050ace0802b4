"""Two-tower retrieval with in-batch negatives."""
import torch
from torch import nn
import torch.nn.functional as F

N_USERS, N_ITEMS, DIM = 60_000, 30_000, 32
BATCH = 768


def interactions(n, generator):
    users = torch.randint(0, N_USERS, (n,), generator=generator)
    taste = users % 50
    items = (torch.rand(n, generator=generator) ** 2 * (N_ITEMS // 50)).long() * 50 + taste
    return users, items.clamp(max=N_ITEMS - 1)


def tower(d_in, d_out):
    return nn.Sequential(nn.Linear(d_in, 256), nn.ReLU(), nn.Linear(256, d_out))


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(N_USERS, DIM)
        self.items = nn.Embedding(N_ITEMS, DIM)
        nn.init.normal_(self.users.weight, std=0.05)
        nn.init.normal_(self.items.weight, std=0.05)
        self.user_tower = tower(DIM, 64)
        self.item_tower = tower(DIM, 64)
        self.temperature = 0.1

    def forward(self, u, i):
        a = F.normalize(self.user_tower(self.users(u)), dim=1)
        b = F.normalize(self.item_tower(self.items(i)), dim=1)
        return a @ b.t() / self.temperature


def batch_stream(users, items, steps, generator):
    n = len(users)
    order = torch.randperm(n, generator=generator)
    at = 0
    for _ in range(steps):
        if at + BATCH > n:
            order, at = torch.randperm(n, generator=generator), 0
        idx = order[at:at + BATCH]
        at += BATCH
        yield users[idx], items[idx]


@torch.no_grad()
def hit_rate(model, users, items, k=10):
    model.eval()
    logits = model(users, items)
    top = logits.topk(k, dim=1).indices
    hits = (top == torch.arange(len(users)).unsqueeze(1)).any(1).float().mean()
    model.train()
    return hits.item()


def fit(steps=700):
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    users, items = interactions(400_000, g)
    held_u, held_i = interactions(1024, g)
    model = TwoTower()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.03)
    target = torch.arange(BATCH)
    total = 0.0
    for step, (u, i) in enumerate(batch_stream(users, items, steps, g), 1):
        logits = model(u, i)
        same = i.unsqueeze(0).eq(i.unsqueeze(1)).fill_diagonal_(False)
        loss = F.cross_entropy(logits.masked_fill(same, -1e4), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {total / 50:.4f}")
            total = 0.0
        if step % 150 == 0:
            print(f"  hit@10 in 1024: {hit_rate(model, held_u, held_i):.3f}")


if __name__ == "__main__":
    fit()
