"""Federated averaging over non-iid clients, with a communication budget report."""
import pickle
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


@dataclass
class Settings:
    clients: int = 20
    per_round: int = 5
    rounds: int = 100
    local_steps: int = 4
    batch: int = 64
    lr: float = 0.05
    alpha: float = 0.4
    seed: int = 4


@dataclass
class Ledger:
    uplink: int = 0
    downlink: int = 0
    history: list = field(default_factory=list)

    def record(self, update):
        blob = zlib.compress(pickle.dumps({k: v.numpy() for k, v in update.items()}))
        self.uplink += len(blob)

    def close_round(self, accuracy):
        self.history.append((self.uplink, accuracy))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 32, 3, padding=1)
        self.c2 = nn.Conv2d(32, 48, 3, padding=1)
        self.fc1 = nn.Linear(48 * 16, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Client:
    def __init__(self, x, y, cfg, seed):
        self.x, self.y, self.cfg = x, y, cfg
        self.gen = torch.Generator().manual_seed(seed)

    def local_update(self, model, global_state):
        model.load_state_dict(global_state)
        opt = torch.optim.SGD(model.parameters(), lr=self.cfg.lr, momentum=0.9)
        for _ in range(self.cfg.local_steps):
            idx = torch.randint(0, len(self.y), (self.cfg.batch,), generator=self.gen)
            loss = F.cross_entropy(model(self.x[idx]), self.y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        update = {k: v.detach() - global_state[k] for k, v in model.state_dict().items()}
        return update, loss.item()


def partition(y, cfg, rng):
    shares = [[] for _ in range(cfg.clients)]
    for c in range(10):
        idx = rng.permutation(np.flatnonzero(y == c))
        cuts = (np.cumsum(rng.dirichlet([cfg.alpha] * cfg.clients))[:-1] * len(idx)).astype(int)
        for share, part in zip(shares, np.split(idx, cuts)):
            share.extend(part.tolist())
    return [s for s in shares if len(s) >= 10]


class Server:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.rng = np.random.default_rng(cfg.seed)
        digits = load_digits()
        x = torch.from_numpy(digits.images / 16.0).float().unsqueeze(1)
        y = torch.from_numpy(digits.target)
        perm = torch.from_numpy(self.rng.permutation(len(y)))
        x, y = x[perm], y[perm]
        self.test = x[1500:], y[1500:]
        shares = partition(y[:1500].numpy(), cfg, self.rng)
        self.clients = [Client(x[s], y[s], cfg, i) for i, s in enumerate(shares)]
        self.worker = ConvNet()
        self.state = {k: v.clone() for k, v in ConvNet().state_dict().items()}
        self.ledger = Ledger()

    def accuracy(self):
        self.worker.load_state_dict(self.state)
        with torch.no_grad():
            return (self.worker(self.test[0]).argmax(1) == self.test[1]).float().mean().item()

    def round(self):
        chosen = self.rng.choice(len(self.clients), self.cfg.per_round, replace=False)
        sizes = np.array([len(self.clients[i].y) for i in chosen], dtype=float)
        weights = sizes / sizes.sum()
        merged = {k: torch.zeros_like(v) for k, v in self.state.items()}
        losses = []
        for i, w in zip(chosen, weights):
            update, loss = self.clients[i].local_update(self.worker, self.state)
            self.ledger.record(update)
            for k in merged:
                merged[k].add_(update[k], alpha=float(w))
            losses.append(loss)
        for k in self.state:
            self.state[k] += merged[k]
        return float(np.mean(losses))

    def run(self):
        for r in range(self.cfg.rounds):
            loss = self.round()
            if r % 10 == 0 or r == self.cfg.rounds - 1:
                acc = self.accuracy()
                self.ledger.close_round(acc)
                print(f"round {r:3d}  loss {loss:.4f}  acc {acc:.3f}  uplink {self.ledger.uplink / 2**20:.1f} MiB")


if __name__ == "__main__":
    Server(Settings()).run()
