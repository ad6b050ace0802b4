import json
import os
import tempfile
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Hyper:
    users: int = 5000
    items: int = 2000
    dim: int = 64
    hidden: tuple = field(default_factory=lambda: (256, 128))
    batch: int = 2048
    steps: int = 100
    lr: float = 2e-3


class NeuMF(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.u = nn.Embedding(hp.users, hp.dim)
        self.i = nn.Embedding(hp.items, hp.dim)
        width = 2 * hp.dim
        mlp = []
        for h in hp.hidden:
            mlp.extend([nn.Linear(width, h), nn.ReLU()])
            width = h
        self.mlp = nn.Sequential(*mlp)
        self.out = nn.Linear(width + hp.dim, 1)

    def forward(self, users, items):
        u, i = self.u(users), self.i(items)
        deep = self.mlp(torch.cat([u, i], 1))
        return self.out(torch.cat([deep, u * i], 1)).squeeze(1)


class Trainer:
    def __init__(self, hp):
        self.hp = hp
        torch.manual_seed(11)
        self.model = NeuMF(hp)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=hp.lr)
        self.taste = torch.randn(hp.users, 8)
        self.style = torch.randn(hp.items, 8)
        self.dir = tempfile.mkdtemp(prefix="neumf_")
        self.file = open(os.path.join(self.dir, "predictions.jsonl"), "w")

    def sample(self):
        u = torch.randint(0, self.hp.users, (self.hp.batch,))
        i = torch.randint(0, self.hp.items, (self.hp.batch,))
        rating = (self.taste[u] * self.style[i]).sum(1).tanh() * 2 + 3
        return u, i, rating

    def record(self, step, u, i, rating, pred):
        rows = [
            {"step": step, "user": a, "item": b, "rating": round(c, 4), "pred": round(d, 4)}
            for a, b, c, d in zip(u.tolist(), i.tolist(), rating.tolist(), pred.tolist())
        ]
        for row in rows:
            self.file.write(json.dumps(row) + "\n")

    def fit(self):
        for step in range(self.hp.steps):
            u, i, rating = self.sample()
            pred = self.model(u, i)
            loss = nn.functional.mse_loss(pred, rating)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.record(step, u, i, rating, pred.detach())
            if step % 25 == 0:
                print(f"[{step}/{self.hp.steps}] mse={loss.item():.4f}")
        self.file.close()


if __name__ == "__main__":
    Trainer(Hyper()).fit()
