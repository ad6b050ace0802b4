"""Double DQN for a differential-drive robot that looks for a charging dock with a lidar."""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BEAMS = 180


class DockWorld:
    """Square room with round pillars; observation = lidar ranges + pose of the dock."""

    def __init__(self, seed=0, pillars=6, size=10.0):
        self.rng = np.random.default_rng(seed)
        self.size = size
        self.n_pillars = pillars
        self.angles = np.linspace(-math.pi, math.pi, BEAMS, endpoint=False)
        self.reset()

    def reset(self):
        self.pillars = self.rng.uniform(1, self.size - 1, (self.n_pillars, 2))
        self.pos = self.rng.uniform(1, self.size - 1, 2)
        self.dock = self.rng.uniform(1, self.size - 1, 2)
        self.heading = self.rng.uniform(-math.pi, math.pi)
        self.t = 0
        return self.observe()

    def observe(self):
        a = self.angles + self.heading
        d = np.stack([np.cos(a), np.sin(a)], axis=1)
        rel = self.pillars - self.pos
        along = rel @ d.T
        off = (rel ** 2).sum(1, keepdims=True) - along ** 2
        hit = np.where((off < 0.25) & (along > 0), along - np.sqrt(np.clip(0.25 - off, 0, None)), self.size)
        with np.errstate(divide="ignore"):
            wall = np.minimum(
                np.where(d[:, 0] > 0, (self.size - self.pos[0]) / d[:, 0], -self.pos[0] / d[:, 0]),
                np.where(d[:, 1] > 0, (self.size - self.pos[1]) / d[:, 1], -self.pos[1] / d[:, 1]),
            )
        ranges = np.minimum(hit.min(0), wall) / self.size
        goal = self.dock - self.pos
        bearing = math.atan2(goal[1], goal[0]) - self.heading
        extra = [np.hypot(*goal) / self.size, math.cos(bearing), math.sin(bearing), self.t / 200]
        return np.concatenate([ranges, extra]).astype(np.float32)

    def step(self, action):
        before = np.hypot(*(self.dock - self.pos))
        self.heading += (-0.4, 0.0, 0.4)[action]
        self.pos = np.clip(self.pos + 0.3 * np.array([math.cos(self.heading), math.sin(self.heading)]), 0.05, self.size - 0.05)
        self.t += 1
        after = np.hypot(*(self.dock - self.pos))
        reward = before - after
        if (np.hypot(*(self.pillars - self.pos).T) < 0.5).any():
            reward -= 1.0
        done = after < 0.5 or self.t >= 200
        return self.observe(), float(reward), bool(done)


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []
        self.head = 0

    def push(self, *transition):
        if len(self.items) < self.capacity:
            self.items.append(transition)
        else:
            self.items[self.head] = transition
        self.head = (self.head + 1) % self.capacity

    def sample(self, n):
        picks = random.sample(range(len(self.items)), n)
        obs, act, rew, nxt, done = zip(*(self.items[i] for i in picks))
        return (
            torch.tensor(obs),
            torch.tensor(act),
            torch.tensor(rew),
            torch.tensor(nxt),
            torch.tensor(done, dtype=torch.float32),
        )


def q_network(width):
    return nn.Sequential(nn.Linear(BEAMS + 4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=900)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--width", type=int, default=384)
    p.add_argument("--gamma", type=float, default=0.98)
    p.add_argument("--warmup", type=int, default=1000)
    args = p.parse_args()
    random.seed(0)
    torch.manual_seed(0)

    env = DockWorld(seed=0)
    online, target = q_network(args.width), q_network(args.width)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=3e-4)
    replay = Replay(20_000)

    obs = env.reset()
    returns, score = [], 0.0
    for step in range(args.warmup + args.updates * 2):
        frac = max(0, step - args.warmup) / (args.updates * 2)
        if step < args.warmup or random.random() < 1.0 - 0.9 * frac:
            action = random.randrange(3)
        else:
            with torch.no_grad():
                action = int(online(torch.from_numpy(obs)).argmax())
        nxt, reward, done = env.step(action)
        replay.push(obs, action, reward, nxt, done)
        score += reward
        obs = nxt
        if done:
            returns.append(score)
            score, obs = 0.0, env.reset()
        if step < args.warmup or step % 2:
            continue

        s, a, r, s2, d = replay.sample(args.batch)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            y = r + args.gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
        q = online(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        update = (step - args.warmup) // 2
        if update % 100 == 0:
            target.load_state_dict(online.state_dict())
            print(f"update {update:4d}  loss {loss.item():.4f}  return {np.mean(returns[-10:]):.2f}")
    print(f"episodes {len(returns)}  last return {np.mean(returns[-10:]):.2f}")


if __name__ == "__main__":
    main()
