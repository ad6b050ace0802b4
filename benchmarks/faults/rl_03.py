import heapq
import random
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


class Visits:
    def __init__(self):
        self.count = defaultdict(int)
        self.rare = []

    def bonus(self, states):
        out = []
        for s in states.tolist():
            key = " ".join(f"{round(v * 4):+d}" for v in s)
            self.count[key] += 1
            n = self.count[key]
            heapq.heappush(self.rare, (n, key))
            while len(self.rare) > 500:
                heapq.heappop(self.rare)
            out.append(1.0 / n**0.5)
        return torch.tensor(out)


class Policy(nn.Module):
    def __init__(self, width=112):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )

    def forward(self, s):
        return F.log_softmax(self.net(s), -1)


def advance(s, a):
    move = F.one_hot(a, 4).float() * 2 - 0.5
    return (0.95 * s + 0.1 * move + 0.05 * torch.randn_like(s)).clamp(-1.5, 1.5)


def train(iterations=80, walkers=4096):
    random.seed(0)
    torch.manual_seed(0)
    visits, policy = Visits(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    states = torch.zeros(walkers, 4)
    for it in range(iterations):
        logp = policy(states)
        actions = torch.multinomial(logp.detach().exp(), 1).squeeze(1)
        nxt = advance(states, actions)
        reward = visits.bonus(nxt)
        adv = reward - reward.mean()
        loss = (
            -(logp.gather(1, actions[:, None]).squeeze(1) * adv).mean()
            + 0.01 * (logp.exp() * logp).sum(1).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states = nxt
        if it % 20 == 0:
            print(f"iteration {it} bonus {reward.mean().item():.3f}")


if __name__ == "__main__":
    train()
