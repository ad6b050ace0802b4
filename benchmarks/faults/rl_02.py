import random
from collections import namedtuple

import torch
import torch.nn as nn

Config = namedtuple("Config", "capacity batch gamma lr steps target_every")
cfg = Config(30000, 256, 0.98, 5e-4, 100, 25)


class Replay:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.items = []

    def push(self, *transition):
        if len(self.items) >= self.capacity:
            self.items.pop()
        self.items.append({"data": transition, "td": 1.0})

    def sample(self, n):
        self.items.sort(key=lambda e: abs(e["td"]), reverse=True)
        weights = [(1.0 / (rank + 1)) ** self.alpha for rank in range(len(self.items))]
        total = sum(weights)
        probs = [w / total for w in weights]
        chosen = random.choices(self.items, probs, k=n)
        cols = zip(*(c["data"] for c in chosen))
        return chosen, [torch.stack(c) for c in cols]

    def update(self, chosen, errors):
        for c, e in zip(chosen, errors.tolist()):
            c["td"] = e


class QNet(nn.Module):
    def __init__(self, obs=8, actions=4, h=384):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(obs, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU()
        )
        self.a, self.v = nn.Linear(h, actions), nn.Linear(h, 1)

    def forward(self, x):
        x = self.f(x)
        a = self.a(x)
        return self.v(x) + a - a.mean(1, keepdim=True)


def env_transitions(n):
    s = torch.randn(n, 8)
    a = torch.randint(0, 4, (n,))
    s2 = 0.9 * s + 0.1 * torch.randn(n, 8)
    s2[torch.arange(n), a] += 0.3
    r = -s2.pow(2).mean(1)
    return list(zip(s, a, r, s2))


def train():
    torch.manual_seed(0)
    random.seed(0)
    buffer = Replay(cfg.capacity)
    for tr in env_transitions(cfg.capacity):
        buffer.push(*tr)
    q, target = QNet(), QNet()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        for tr in env_transitions(16):
            buffer.push(*tr)
        chosen, (s, a, r, s2) = buffer.sample(cfg.batch)
        with torch.no_grad():
            best = q(s2).argmax(1, keepdim=True)
            y = r + cfg.gamma * target(s2).gather(1, best).squeeze(1)
        qa = q(s).gather(1, a[:, None]).squeeze(1)
        td = y - qa
        loss = nn.functional.smooth_l1_loss(qa, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        buffer.update(chosen, td.detach())
        if step % cfg.target_every == 0:
            target.load_state_dict(q.state_dict())
            print("step", step, "loss", float(loss))


train()
