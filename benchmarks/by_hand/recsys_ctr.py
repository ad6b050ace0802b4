"""Click prediction with user / item / context embeddings (a small DLRM-like model), Adagrad."""
import argparse
import time

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, Dataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--n-users", type=int, default=200_000)
    p.add_argument("--n-items", type=int, default=60_000)
    p.add_argument("--n-rows", type=int, default=700_000)
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=4096)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=17)
    return p.parse_args()


def make_log(args):
    """Synthetic impressions with Zipf-like popularity and a low-rank preference structure."""
    rng = np.random.default_rng(args.seed)
    n = args.n_rows
    user = np.minimum((rng.pareto(0.9, n) * 3000).astype(np.int64), args.n_users - 1)
    item = np.minimum((rng.pareto(0.9, n) * 800).astype(np.int64), args.n_items - 1)
    hour = rng.integers(0, 24, n)
    device = rng.integers(0, 5, n)
    age = rng.normal(0, 1, n).astype(np.float32)
    price = rng.normal(0, 1, n).astype(np.float32)
    pu = rng.normal(0, 1, (args.n_users, 2)).astype(np.float32)
    qi = rng.normal(0, 1, (args.n_items, 2)).astype(np.float32)
    bias = rng.normal(0, 1.0, args.n_items).astype(np.float32)
    logit = (pu[user] * qi[item]).sum(1) + bias[item] - 0.5 * price + 0.3 * np.sin(hour / 24 * 6.28) - 0.8
    click = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return pd.DataFrame(dict(user=user, item=item, hour=hour, device=device, age=age, price=price, click=click))


class ClickDataset(Dataset):
    def __init__(self, df):
        self.cat = df[["user", "item", "hour", "device"]].values.astype(np.int64)
        self.num = df[["age", "price"]].values.astype(np.float32)
        self.y = df["click"].values.astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return self.cat[idx], self.num[idx], self.y[idx]


class ClickModel(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(s, dim) for s in sizes])
        for e in self.emb:
            nn.init.normal_(e.weight, std=0.05)
        self.bottom = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        n_vec = len(sizes) + 1
        self.top = nn.Sequential(
            nn.Linear(dim + n_vec * (n_vec - 1) // 2, 128), nn.ReLU(),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1))

    def forward(self, cat, num):
        dense = self.bottom(num)
        vecs = [dense] + [e(cat[:, i]) for i, e in enumerate(self.emb)]
        dots = []
        for i in range(len(vecs)):
            for j in range(i + 1, len(vecs)):
                dots.append((vecs[i] * vecs[j]).sum(dim=1, keepdim=True))
        x = torch.cat([dense] + dots, dim=1)
        return self.top(x).squeeze(1)


def evaluate(model, loader):
    model.eval()
    preds, ys = [], []
    with torch.no_grad():
        for cat, num, y in loader:
            preds.append(torch.sigmoid(model(cat, num)))
            ys.append(y)
    model.train()
    return roc_auc_score(torch.cat(ys).numpy(), torch.cat(preds).numpy())


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    df = make_log(args)
    n_val = 60_000
    train_ds, val_ds = ClickDataset(df.iloc[:-n_val]), ClickDataset(df.iloc[-n_val:])
    train_loader = DataLoader(train_ds, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_ds, batch_size=args.batch_size)
    model = ClickModel([args.n_users, args.n_items, 24, 5], args.dim)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, {len(train_loader)} steps per epoch")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        t0 = time.time()
        running = 0.0
        for step, (cat, num, y) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = criterion(model(cat, num), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
            if (step + 1) % 20 == 0:
                print(f"epoch {epoch} step {step + 1}/{len(train_loader)} loss {running / 20:.4f} "
                      f"({(time.time() - t0) / (step + 1) * 1000:.0f} ms/step)")
                running = 0.0
        print(f"epoch {epoch} val AUC {evaluate(model, val_loader):.4f}")
    torch.save(model.state_dict(), "recsys_ctr.pt")


if __name__ == "__main__":
    main()
