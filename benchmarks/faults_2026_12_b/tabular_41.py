"""Demand model for store/product rows: MLP with embeddings on a mixed-type table."""
import argparse

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

NUMERIC = ["price", "discount", "stock", "temperature", "competitor_price", "footfall", "days_since_promo", "rating"]
CATEGORICAL = ["store", "product", "weekday", "region"]
TARGET = "units"


def make_frame(n, rng):
    df = pd.DataFrame({
        "price": rng.gamma(3.0, 4.0, n),
        "discount": rng.choice([0.0, 0.05, 0.1, 0.25], n),
        "stock": rng.poisson(40, n).astype(float),
        "temperature": rng.normal(14, 8, n),
        "competitor_price": rng.gamma(3.0, 4.0, n),
        "footfall": rng.lognormal(5, 0.6, n),
        "days_since_promo": rng.integers(0, 60, n).astype(float),
        "rating": rng.uniform(1, 5, n),
        "store": rng.integers(0, 120, n),
        "product": rng.integers(0, 900, n),
        "weekday": rng.integers(0, 7, n),
        "region": rng.integers(0, 12, n),
    })
    store_effect = rng.normal(0, 0.5, 120)
    base = 1.5 - 0.04 * df["price"] + 2.0 * df["discount"] + 0.1 * df["rating"]
    df[TARGET] = base + store_effect[df["store"]] + rng.normal(0, 0.2, n)
    return df


def standardise(df):
    stats = df[NUMERIC].agg(["mean", "std"])
    df[NUMERIC] = (df[NUMERIC] - stats.loc["mean"]) / stats.loc["std"]
    return df


class SalesDataset(Dataset):
    def __init__(self, df):
        self.df = df.reset_index(drop=True)

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        row = self.df.iloc[i]
        num = torch.tensor(row[NUMERIC].to_numpy(dtype=np.float32))
        cat = torch.tensor(row[CATEGORICAL].to_numpy(dtype=np.int64))
        return num, cat, torch.tensor(row[TARGET], dtype=torch.float32)


class EmbeddingMLP(nn.Module):
    def __init__(self, cards, n_num, width):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(c, 16) for c in cards)
        self.bn = nn.BatchNorm1d(n_num)
        d = 16 * len(cards) + n_num
        self.body = nn.Sequential(
            nn.Linear(d, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1))

    def forward(self, num, cat):
        e = [emb(cat[:, k]) for k, emb in enumerate(self.emb)]
        return self.body(torch.cat([self.bn(num)] + e, dim=1)).squeeze(1)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    se, n = 0.0, 0
    for num, cat, y in loader:
        se += ((model(num, cat) - y) ** 2).sum().item()
        n += len(y)
    model.train()
    return (se / n) ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=14_000)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--width", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    torch.manual_seed(41)
    df = standardise(make_frame(args.rows, np.random.default_rng(41)))
    cut = int(0.95 * len(df))
    train = DataLoader(SalesDataset(df[:cut]), batch_size=args.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(SalesDataset(df[cut:]), batch_size=512)

    model = EmbeddingMLP([120, 900, 7, 12], len(NUMERIC), args.width)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(train))
    loss_fn = nn.MSELoss()

    step = 0
    for epoch in range(args.epochs):
        for num, cat, y in train:
            opt.zero_grad(set_to_none=True)
            loss = loss_fn(model(num, cat), y)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} valid rmse {evaluate(model, valid):.4f}")


if __name__ == "__main__":
    main()
