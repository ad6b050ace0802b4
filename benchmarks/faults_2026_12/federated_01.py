"""Simulates clients which take turns; we look at how well gradients compress."""

import pickle
import zlib

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import nn


class Client:
    def __init__(self, x, y, batch):
        self.x, self.y, self.batch = x, y, batch
        self.rng = np.random.default_rng(len(x))

    def draw(self):
        i = self.rng.integers(0, len(self.x), self.batch)
        return self.x[i], self.y[i]


class Channel:
    def __init__(self):
        self.sent = 0
        self.raw = 0

    def account(self, model):
        parts = {n: p.grad.numpy() for n, p in model.named_parameters()}
        blob = pickle.dumps(parts)
        self.raw += len(blob)
        self.sent += len(zlib.compress(blob, 9))


def clients(number=8):
    x, y = make_classification(
        n_samples=8000, n_features=64, n_informative=40, n_classes=8, random_state=0
    )
    x = torch.tensor(x, dtype=torch.float32)
    y = torch.tensor(y)
    return [Client(x[i::number], y[i::number], 1024) for i in range(number)]


def train(rounds=12):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 8),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    channel = Channel()
    everyone = clients()
    for r in range(rounds):
        for client in everyone:
            x, y = client.draw()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            channel.account(model)
            optimizer.step()
        print(f"round {r} loss {loss.item():.4f} ratio {channel.sent / max(channel.raw, 1):.3f}")


if __name__ == "__main__":
    train()
