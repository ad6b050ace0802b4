"""DQN for many point masses at once; environment and replay are arrays."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Fleet:
    def __init__(self, n, seed=0):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.pushes = np.array([-0.1, 0.0, 0.1], dtype=np.float32)
        self.state = self.start(n)

    def start(self, k):
        return self.rng.uniform(-1, 1, (k, 2)).astype(np.float32)

    def step(self, actions):
        x, v = self.state.T
        v = 0.95 * v + self.pushes[actions]
        x = x + 0.1 * v
        nxt = np.stack([x, v], 1).astype(np.float32)
        reward = -np.abs(x).astype(np.float32)
        done = (np.abs(x) > 2) | (self.rng.random(self.n) < 0.01)
        before = self.state
        self.state = np.where(done[:, None], self.start(self.n), nxt)
        return before, reward, nxt, done.astype(np.float32)


class Replay:
    def __init__(self, size):
        self.s = np.zeros((size, 2), np.float32)
        self.n = np.zeros((size, 2), np.float32)
        self.a = np.zeros(size, np.int64)
        self.r = np.zeros(size, np.float32)
        self.d = np.zeros(size, np.float32)
        self.size, self.at, self.full = size, 0, 0

    def add(self, s, a, r, n, d):
        i = np.arange(self.at, self.at + len(s)) % self.size
        self.s[i], self.a[i], self.r[i], self.n[i], self.d[i] = s, a, r, n, d
        self.at = (self.at + len(s)) % self.size
        self.full = min(self.size, self.full + len(s))

    def sample(self, rng, k):
        i = rng.integers(0, self.full, k)
        return [torch.from_numpy(z[i]) for z in (self.s, self.a, self.r, self.n, self.d)]


def q_network(width=320):
    return nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )


def main():
    torch.manual_seed(0)
    fleet, replay = Fleet(64), Replay(50_000)
    online, target = q_network(), q_network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    rng = np.random.default_rng(1)
    for update in range(300):
        with torch.no_grad():
            greedy = online(torch.from_numpy(fleet.state)).argmax(1).numpy()
        explore = rng.random(fleet.n) < max(0.05, 1 - update / 150)
        actions = np.where(explore, rng.integers(0, 3, fleet.n), greedy)
        s, r, n, d = fleet.step(actions)
        replay.add(s, actions, r, n, d)
        s, a, r, n, d = replay.sample(rng, 640)
        with torch.no_grad():
            goal = r + 0.97 * (1 - d) * target(n).amax(1)
        loss = F.smooth_l1_loss(online(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 100 == 0:
            target.load_state_dict(online.state_dict())
            print(update, round(loss.item(), 4), round(float(r.mean()), 3))


main()
