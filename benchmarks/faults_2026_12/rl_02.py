import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim


class Chain:
    """A corridor of 30 cells with a treasure at the far end."""

    SIZE = 30

    def reset(self):
        self.at = 0
        self.clock = 0
        return self.observe()

    def observe(self):
        o = np.zeros(self.SIZE, dtype=np.float32)
        o[self.at] = 1
        return o

    def step(self, action):
        self.clock += 1
        self.at = min(self.SIZE - 1, self.at + 1) if action else max(0, self.at - 1)
        won = self.at == self.SIZE - 1
        return self.observe(), 1.0 if won else -0.01, won or self.clock >= 100


class QNet(nn.Module):
    def __init__(self, inputs, actions, hidden=640):
        super().__init__()
        self.l1 = nn.Linear(inputs, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, actions)
        for m in (self.l1, self.l2, self.l3):
            nn.init.orthogonal_(m.weight)

    def forward(self, x):
        x = F.relu(self.l1(x))
        x = F.relu(self.l2(x))
        x = F.relu(self.l3(x))
        a = self.advantage(x)
        return self.value(x) + a - a.mean(1, keepdim=True)


def target_values(online, reward, nxt, done, gamma=0.99):
    target = QNet(Chain.SIZE, 2)
    target.load_state_dict(online.state_dict())
    target.eval()
    with torch.no_grad():
        return reward + gamma * (1 - done) * target(nxt).max(1).values


def main():
    random.seed(1)
    torch.manual_seed(1)
    env = Chain()
    online = QNet(Chain.SIZE, 2)
    opt = optim.SGD(online.parameters(), lr=1e-2)
    buffer = deque(maxlen=20_000)
    obs = env.reset()
    for update in range(120):
        for _ in range(16):
            action = random.random() < 0.6
            nxt, reward, done = env.step(action)
            buffer.append((obs, int(action), reward, nxt, float(done)))
            obs = env.reset() if done else nxt
        batch = random.choices(buffer, k=160)
        s, a, r, n, d = (torch.from_numpy(np.array(z)) for z in zip(*batch))
        goal = target_values(online, r.float(), n, d.float())
        q = online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.huber_loss(q, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if update % 20 == 0:
            print(update, loss.item())


main()
