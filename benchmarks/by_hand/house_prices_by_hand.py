#!/usr/bin/env python
# Tabular regression with entity embeddings (house-price style data)
import argparse
import copy
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, LabelEncoder

SEED = 2023
CAT_COLS = ["district", "kind", "heating", "agent", "condition"]
NUM_COLS = ["area", "rooms", "age", "floor", "dist_center", "dist_school", "energy", "plot", "noise", "tax"]
TARGET = "price"


def make_dataframe(n):
    rng = np.random.default_rng(SEED)
    df = pd.DataFrame({
        "district": rng.integers(0, 60, n).astype(str),
        "kind": rng.choice(["flat", "house", "loft", "row", "villa"], n),
        "heating": rng.choice(["gas", "oil", "pump", "district", "none"], n),
        "agent": rng.integers(0, 300, n).astype(str),
        "condition": rng.choice(["new", "good", "fair", "poor"], n),
        "area": rng.gamma(6, 16, n),
        "rooms": rng.integers(1, 9, n),
        "age": rng.integers(0, 120, n),
        "floor": rng.integers(0, 12, n),
        "dist_center": rng.gamma(2, 3, n),
        "dist_school": rng.gamma(2, 1, n),
        "energy": rng.normal(120, 40, n),
        "plot": rng.gamma(2, 200, n),
        "noise": rng.normal(55, 8, n),
        "tax": rng.uniform(0.5, 3, n),
    })
    base = rng.normal(0, 0.35, 60)[df["district"].astype(int)]
    kind = df["kind"].map({"flat": 0.0, "house": 0.2, "loft": 0.15, "row": 0.1, "villa": 0.5})
    cond = df["condition"].map({"new": 0.25, "good": 0.1, "fair": 0.0, "poor": -0.25})
    logp = (11 + base + kind + cond + 0.7 * np.log(df["area"]) - 0.05 * df["dist_center"]
            - 0.002 * df["age"] * (1 + kind) + 0.03 * df["floor"] * (df["kind"] == "flat")
            - 0.0008 * (df["energy"] - 60) + rng.normal(0, 0.1, n))
    df[TARGET] = np.exp(logp)
    return df


def to_tensors(df):
    return (torch.tensor(df[CAT_COLS].values, dtype=torch.long),
            torch.tensor(df[NUM_COLS].values, dtype=torch.float),
            torch.tensor(df[TARGET].values, dtype=torch.float))


class TabularModel(nn.Module):
    def __init__(self, cat_dims, n_num, hidden=(256, 128)):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(c, min(50, (c + 1) // 2)) for c in cat_dims])
        n_emb = sum(e.embedding_dim for e in self.embeddings)
        self.bn_num = nn.BatchNorm1d(n_num)
        layers, d = [], n_emb + n_num
        for h in hidden:
            layers += [nn.Linear(d, h), nn.ReLU(), nn.BatchNorm1d(h)]
            d = h
        layers.append(nn.Linear(d, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, cat, num):
        cols = cat.t().contiguous().unbind(0)
        parts = [F.embedding(c, emb.weight) for c, emb in zip(cols, self.embeddings)]
        parts.append(self.bn_num(num))
        x = torch.cat(parts, dim=1)
        return self.layers(x).squeeze(1)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, np.inf, 0, None

    def __call__(self, score, model):
        if score < self.best - 1e-5:
            self.best, self.bad = score, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=30)
    ap.add_argument("--steps", type=int, default=None)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--rows", type=int, default=50000)
    ap.add_argument("--patience", type=int, default=12)
    ap.add_argument("--save", default="house_prices_by_hand.pth")
    args = ap.parse_args()

    np.random.seed(SEED)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)      # the matrices are tiny

    df = make_dataframe(args.rows)
    cat_dims = []
    for c in CAT_COLS:
        le = LabelEncoder()
        df[c] = le.fit_transform(df[c])
        cat_dims.append(len(le.classes_))
    df[TARGET] = np.log1p(df[TARGET])
    df[TARGET] -= df[TARGET].mean()
    train_df, valid_df = train_test_split(df, test_size=0.2, random_state=SEED)
    train_df, valid_df = train_df.copy(), valid_df.copy()
    scaler = StandardScaler()
    train_df[NUM_COLS] = scaler.fit_transform(train_df[NUM_COLS].astype(float))
    valid_df[NUM_COLS] = scaler.transform(valid_df[NUM_COLS].astype(float))

    cats, nums, ys = to_tensors(train_df)
    v_cats, v_nums, v_ys = to_tensors(valid_df)
    train_loader = DataLoader(range(len(ys)), batch_size=args.batch_size, shuffle=True, collate_fn=torch.tensor)

    model = TabularModel(cat_dims, len(NUM_COLS))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.3)
    stopper = EarlyStopping(args.patience)

    step = 0
    for epoch in range(args.epochs):
        model.train()
        total, n = torch.zeros(()), 0
        for idx in train_loader:
            loss = F.mse_loss(model(cats[idx], nums[idx]), ys[idx])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            n += 1
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.7f}", flush=True)
            if args.steps and step >= args.steps:
                break

        model.eval()
        torch.empty((), dtype=torch.int64).random_()   # the draw a validation DataLoader makes: same order of samples
        with torch.inference_mode():
            rmse = F.mse_loss(model(v_cats, v_nums).double(), v_ys.double()).sqrt().item()
        scheduler.step()
        print(f"Epoch {epoch}: train_loss={total.item() / n:.7f} valid_rmse={rmse:.7f}", flush=True)
        if stopper(rmse, model):
            print("Early stopping")
            break
        if args.steps and step >= args.steps:
            break

    if stopper.state is not None:
        model.load_state_dict(stopper.state)
    torch.save(model.state_dict(), args.save)
    print(f"best rmse {stopper.best:.7f}")


if __name__ == "__main__":
    main()
