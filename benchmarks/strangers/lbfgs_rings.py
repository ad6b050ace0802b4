"""Full-batch L-BFGS on a two-moons-like toy set, with a closure."""

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import make_moons

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--seed", type=int, default=0)
opts = parser.parse_args()

random.seed(opts.seed)
np.random.seed(opts.seed)
torch.manual_seed(opts.seed)

points, labels = make_moons(n_samples=6000, noise=0.25, random_state=1)
X = torch.from_numpy(points).float()
Y = torch.from_numpy(labels).float().view(-1, 1)

net = torch.nn.Sequential(
    torch.nn.Linear(2, 96),
    torch.nn.Tanh(),
    torch.nn.Linear(96, 96),
    torch.nn.Tanh(),
    torch.nn.Linear(96, 1),
)
loss_fn = torch.nn.BCEWithLogitsLoss()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=8, history_size=20)


def closure():
    optimizer.zero_grad()
    loss = loss_fn(net(X), Y)
    for p in net.parameters():
        loss = loss + 1e-4 * (p**2).sum()
    loss.backward()
    return loss


for i in range(opts.steps):
    loss = optimizer.step(closure)
    print(f"step {i + 1} loss {loss.item():.8f}")

with torch.no_grad():
    accuracy = ((net(X) > 0).float() == Y).float().mean()
print(f"accuracy {accuracy.item():.4f}")
