import collections
import pickle
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

Step = collections.namedtuple("Step", "state action reward next_state done")


class PointMass:
    """Move a point to the origin with five pushes."""

    pushes = np.array([[0, 0], [0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]], dtype=np.float32)

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.x = self.rng.uniform(-1, 1, 2).astype(np.float32)
        self.t = 0
        return self.x.copy()

    def step(self, a):
        self.x = self.x + self.pushes[a]
        self.t += 1
        r = -float(np.abs(self.x).sum())
        done = self.t >= 40 or r > -0.05
        return self.x.copy(), r, done


class Agent:
    def __init__(self, path, hidden=384):
        self.q = self.make(hidden)
        self.target = self.make(hidden)
        self.target.load_state_dict(self.q.state_dict())
        self.optim = torch.optim.Adam(self.q.parameters(), lr=5e-4)
        self.history = []
        self.path = path

    @staticmethod
    def make(h):
        return nn.Sequential(
            nn.Linear(2, h),
            nn.ReLU(),
            nn.Linear(h, h),
            nn.ReLU(),
            nn.Linear(h, h),
            nn.ReLU(),
            nn.Linear(h, 5),
        )

    def act(self, s, eps, rng):
        if rng.random() < eps:
            return int(rng.integers(5))
        with torch.no_grad():
            return int(self.q(torch.from_numpy(s)).argmax())

    def remember(self, *items):
        self.history.append(Step(*items))

    def persist(self):
        with open(self.path, "wb") as f:
            pickle.dump([tuple(h) for h in self.history], f)

    def learn(self, rng, batch=512):
        rows = [self.history[i] for i in rng.integers(0, len(self.history), batch)]
        s, a, r, n, d = (np.array(c) for c in zip(*rows))
        s, n = torch.from_numpy(s), torch.from_numpy(n)
        a = torch.from_numpy(a)
        r = torch.from_numpy(r).float()
        d = torch.from_numpy(d).float()
        with torch.no_grad():
            goal = r + 0.97 * (1 - d) * self.target(n).amax(1)
        value = self.q(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.item()


def main():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    env = PointMass(rng)
    with tempfile.TemporaryDirectory() as tmp:
        agent = Agent(Path(tmp) / "history.pkl")
        state = env.reset()
        for warm in range(4000):
            a = int(rng.integers(5))
            nxt, r, done = env.step(a)
            agent.remember(state, a, r, nxt, done)
            state = env.reset() if done else nxt
        for update in range(300):
            for _ in range(8):
                a = agent.act(state, 0.2, rng)
                nxt, r, done = env.step(a)
                agent.remember(state, a, r, nxt, done)
                state = env.reset() if done else nxt
            loss = agent.learn(rng)
            agent.persist()
            if update % 50 == 0:
                agent.target.load_state_dict(agent.q.state_dict())
                print(update, loss)


main()
