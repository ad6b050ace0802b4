import numpy as np
import torch
from torch import nn


class Drop(nn.Module):
    """Monte Carlo dropout with masks which can be reproduced."""

    def __init__(self, rate, seed):
        super().__init__()
        self.keep = 1 - rate
        self.rng = np.random.default_rng(seed)

    def forward(self, x):
        mask = self.rng.choice([0, 1], size=tuple(x.shape), p=[1 - self.keep, self.keep])
        return x * torch.tensor(mask, dtype=x.dtype) / self.keep


def build(sizes, rate=0.2):
    layers = []
    for k, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.Linear(a, b), nn.ReLU(), Drop(rate, k)]
    layers.append(nn.Linear(sizes[-1], 2))
    return nn.Sequential(*layers)


def gaussian_nll(out, y):
    mean, log_var = out.unbind(1)
    return 0.5 * (log_var + (y - mean) ** 2 / log_var.exp()).mean()


def batches(n, size):
    x = torch.randn(n, 16)
    y = (x[:, 0] * x[:, 1]).sin() + 0.1 * x[:, 2] * torch.randn(n)
    while True:
        pick = torch.randint(0, n, (size,))
        yield x[pick], y[pick]


torch.manual_seed(0)
model = build([16, 256, 256, 256])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(batches(20_000, 768)):
    loss = gaussian_nll(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(step, loss.item())
    if step == 150:
        break
