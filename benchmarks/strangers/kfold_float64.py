"""5-fold cross-validation of a small regression net on the diabetes data, in double precision."""

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold
from torch import nn


class Net(nn.Module):
    def __init__(self, n_in, n_hidden=160, n_blocks=5):
        super().__init__()
        self.first = nn.Linear(n_in, n_hidden)
        self.blocks = nn.ModuleList([nn.Linear(n_hidden, n_hidden) for _ in range(n_blocks)])
        self.out = nn.Linear(n_hidden, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        for block in self.blocks:
            h = h + 0.3 * torch.tanh(block(h))
        return self.out(h).squeeze(-1)


def r2(pred, target):
    return 1 - ((pred - target) ** 2).sum() / ((target - target.mean()) ** 2).sum()


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40000, help="over all folds together")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--folds", type=int, default=5)
args = parser.parse_args()

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

X, y = load_diabetes(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
y = (y - y.mean()) / y.std()

step = 0
scores = []
per_fold = -(-args.steps // args.folds)
for fold, (train_idx, test_idx) in enumerate(
    KFold(args.folds, shuffle=True, random_state=args.seed).split(X)
):
    # numpy is float64, and so is everything below
    x_train, y_train = torch.from_numpy(X[train_idx]), torch.from_numpy(y[train_idx])
    x_test, y_test = torch.from_numpy(X[test_idx]), torch.from_numpy(y[test_idx])
    net = Net(X.shape[1]).double()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    for _ in range(per_fold):
        if step >= args.steps:
            break
        idx = np.random.choice(len(x_train), 64, replace=False)
        loss = ((net(x_train[idx]) - y_train[idx]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step <= 100 or step % 25 == 0:
            print("step", step, "loss", loss.item())
    with torch.no_grad():
        scores.append(r2(net(x_test), y_test).item())
    print(f"fold {fold}: R2 {scores[-1]:.4f}")
print(f"R2 over {len(scores)} folds: {np.mean(scores):.4f} +- {np.std(scores):.4f}")
