"""Tabular transformer-free baseline: early stopping on a small validation set."""

import copy

import pandas as pd
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def frame():
    x, y = make_classification(6000, 40, n_informative=15, flip_y=0.05, random_state=3)
    table = pd.DataFrame(x, columns=[f"f{i}" for i in range(40)])
    for name in table.columns[:10]:
        table[f"{name}_squared"] = table[name] ** 2
    return table, y


def tensors(table, y):
    a, b, ya, yb = train_test_split(table, y, test_size=0.15, random_state=0, stratify=y)
    scaler = StandardScaler().fit(a)
    to = lambda z: torch.tensor(scaler.transform(z), dtype=torch.float32)
    return to(a), torch.tensor(ya).float(), to(b), torch.tensor(yb).float()


class Net(nn.Module):
    def __init__(self, n, width=704):
        super().__init__()
        self.a = nn.Sequential(
            nn.Linear(n, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        )
        self.b = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.a(x)
        return self.out(h + self.b(h)).squeeze(1)


def main():
    torch.manual_seed(0)
    x, y, vx, vy = tensors(*frame())
    data = TensorDataset(x, y)
    sampler = BatchSampler(RandomSampler(data), 384, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model = Net(x.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    best, kept, patience = 0.0, None, 0
    for epoch in range(10):
        model.train()
        for a, b in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            auc = roc_auc_score(vy.numpy(), model(vx).numpy())
        if auc > best:
            best, kept, patience = auc, copy.deepcopy(model.state_dict()), 0
        else:
            patience += 1
        if patience == 4:
            break
        print(f"epoch {epoch} loss {loss.item():.4f} auc {auc:.4f}")
    model.load_state_dict(kept)
    print("best", best)


if __name__ == "__main__":
    main()
