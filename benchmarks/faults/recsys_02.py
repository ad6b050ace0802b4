import hashlib
import random

import torch
import torch.nn as nn

random.seed(5)
COUNTRIES = [f"country-{i}" for i in range(60)]
DEVICES = [f"device/{a}/{b}" for a in "abcdef" for b in range(30)]
SITES = [f"https://site{i}.example.org/page" for i in range(900)]
QUERIES = [f"query {i} {i * 7 % 13}" for i in range(5000)]
BUCKETS = 20000


def make_rows(n):
    rows = []
    for _ in range(n):
        row = (
            random.choice(COUNTRIES),
            random.choice(DEVICES),
            random.choice(SITES),
            random.choice(QUERIES),
        )
        rows.append((row, float(len(row[1]) % 2 == 0 or random.random() < 0.2)))
    return rows


def bucket(field, value):
    digest = hashlib.md5(f"{field}={value}".encode()).hexdigest()
    return int(digest, 16) % BUCKETS


def encode(rows):
    return torch.tensor([[bucket(f, v) for f, v in enumerate(r)] for r in rows])


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(BUCKETS, 32, sparse=False)
        self.deep = nn.Sequential(
            nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        self.wide = nn.Embedding(BUCKETS, 1)

    def forward(self, ids):
        return self.deep(self.emb(ids).flatten(1)).squeeze(1) + self.wide(ids).sum((1, 2))


train_rows = make_rows(20000)
model = ClickModel()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
bce = nn.BCEWithLogitsLoss()
total = 0.0
for step in range(100):
    batch = random.sample(train_rows, 1800)
    ids = encode([r for r, _ in batch])
    target = torch.tensor([t for _, t in batch])
    loss = bce(model(ids), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    if step % 20 == 19:
        print(f"{step + 1} {total / 20:.4f}")
        total = 0.0
