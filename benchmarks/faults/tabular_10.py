import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def tensors(seed):
    x, y = load_breast_cancer(return_X_y=True)
    a, b, c, d = train_test_split(x, y, test_size=0.2, random_state=seed)
    s = StandardScaler().fit(a)
    f = lambda v: torch.tensor(s.transform(v), dtype=torch.float32)
    return f(a).repeat(12, 1), f(b), torch.tensor(c).float().repeat(12), torch.tensor(d).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch-size", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    xtr, xte, ytr, yte = tensors(0)
    loader = DataLoader(TensorDataset(xtr, ytr), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(30, 640),
        nn.BatchNorm1d(640),
        nn.ReLU(),
        nn.Linear(640, 640),
        nn.BatchNorm1d(640),
        nn.ReLU(),
        nn.Linear(640, 1),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    crit = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for xb, yb in loader:
            loss = crit(model(xb).squeeze(1), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            auc = roc_auc_score(yte.numpy(), model(xte).squeeze(1).numpy())
        print(f"epoch {epoch} loss {total / len(loader):.4f} auc {auc:.4f}")


if __name__ == "__main__":
    main()
