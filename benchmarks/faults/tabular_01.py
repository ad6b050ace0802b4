import argparse

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch.utils.data import DataLoader, TensorDataset


def get_data(n, seed):
    X, y = make_classification(n, 64, n_informative=24, n_redundant=8, random_state=seed)
    X = (X - X.mean(0)) / X.std(0)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


class MLP(nn.Module):
    def __init__(self, d, width, depth, p=0.1):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p)]
            d = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--batch-size", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--width", type=int, default=768)
    args = ap.parse_args()

    torch.manual_seed(0)
    X, y = get_data(20000, 0)
    loader = DataLoader(TensorDataset(X, y), batch_size=args.batch_size, shuffle=True)
    model = MLP(64, args.width, 3)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    crit = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        scores, targets = [], []
        running = 0.0
        for i, (xb, yb) in enumerate(loader):
            out = model(xb)
            loss = crit(out, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
            scores.append(out.detach().sigmoid().numpy())
            targets.append(yb.numpy())
            s, t = np.concatenate(scores), np.concatenate(targets)
            auc = roc_auc_score(t, s)
            ap_ = average_precision_score(t, s)
            f1 = max(f1_score(t, s > c) for c in (0.3, 0.4, 0.5, 0.6))
            if i % 10 == 0:
                print(
                    f"epoch {epoch} it {i} loss {running / (i + 1):.4f} auc {auc:.4f} ap {ap_:.4f} f1 {f1:.4f}"
                )


if __name__ == "__main__":
    main()
