import numpy as np
import torch
from scipy.stats import mstats
from sklearn.datasets import make_friedman1
from sklearn.preprocessing import StandardScaler
from torch import nn


def data():
    x, y = make_friedman1(n_samples=9000, n_features=20, noise=0.5, random_state=1)
    x = StandardScaler().fit_transform(x)
    y = (y - y.mean()) / y.std()
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, x):
        return x + self.f(x)


def calm(parameters, part=0.02):
    """Pull extreme entries of each gradient back to the 2nd and 98th percentile."""
    for p in parameters:
        if p.grad is None:
            continue
        g = p.grad.numpy().ravel()
        w = mstats.winsorize(g, limits=(part, part))
        p.grad.copy_(torch.from_numpy(np.asarray(w)).view_as(p.grad))


def main():
    torch.manual_seed(0)
    x, y = data()
    model = nn.Sequential(nn.Linear(20, 256), *[Residual(256) for _ in range(4)], nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(6):
        perm = torch.randperm(len(x))
        total = 0.0
        for rows in perm.split(512):
            loss = nn.functional.mse_loss(model(x[rows]).squeeze(1), y[rows])
            optimizer.zero_grad()
            loss.backward()
            calm(model.parameters())
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: {total / len(x):.4f}")


if __name__ == "__main__":
    main()
