"""Advantage actor-critic (PPO clipping) on a vectorised pendulum."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class Cfg:
    envs: int = 64
    horizon: int = 64
    iterations: int = 44
    epochs: int = 4
    minibatch: int = 512
    gamma: float = 0.97
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 1e-3
    lr: float = 5e-4
    width: int = 256
    seed: int = 6


class Pendulums:
    """N pendulums advanced together in numpy."""

    def __init__(self, n, seed, limit=200):
        self.n, self.limit = n, limit
        self.rng = np.random.default_rng(seed)
        self.th = self.rng.uniform(-np.pi, np.pi, n)
        self.om = self.rng.uniform(-1, 1, n)
        self.t = self.rng.integers(0, limit, n)

    def obs(self):
        return np.stack([np.cos(self.th), np.sin(self.th), self.om / 8], axis=1).astype(np.float32)

    def step(self, torque):
        u = np.clip(2 * torque, -2, 2)
        angle = (self.th + np.pi) % (2 * np.pi) - np.pi
        cost = angle ** 2 + 0.1 * self.om ** 2 + 0.001 * u ** 2
        self.om = np.clip(self.om + (15 * np.sin(self.th) + 3 * u) * 0.05, -8, 8)
        self.th = self.th + self.om * 0.05
        self.t += 1
        done = self.t >= self.limit
        k = int(done.sum())
        if k:
            self.th[done] = self.rng.uniform(-np.pi, np.pi, k)
            self.om[done] = self.rng.uniform(-1, 1, k)
            self.t[done] = 0
        return self.obs(), (-cost / 8).astype(np.float32), done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.v = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())

    def value(self, obs):
        return self.v(obs).squeeze(-1)


class PPO:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.env = Pendulums(cfg.envs, cfg.seed)
        self.net = ActorCritic(cfg.width)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr, eps=1e-5)
        steps = cfg.iterations * cfg.epochs * (cfg.envs * cfg.horizon // cfg.minibatch)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.1, steps)
        self.obs = torch.from_numpy(self.env.obs())

    @torch.no_grad()
    def rollout(self):
        c = self.cfg
        obs = torch.empty(c.horizon, c.envs, 3)
        act, logp = torch.empty(c.horizon, c.envs, 1), torch.empty(c.horizon, c.envs)
        rew, done, val = (torch.empty(c.horizon, c.envs) for _ in range(3))
        for t in range(c.horizon):
            d = self.net.dist(self.obs)
            a = d.sample()
            obs[t], act[t], logp[t] = self.obs, a, d.log_prob(a).squeeze(-1)
            val[t] = self.net.value(self.obs)
            o, r, dn = self.env.step(a.squeeze(-1).numpy())
            rew[t], done[t] = torch.from_numpy(r), torch.from_numpy(dn)
            self.obs = torch.from_numpy(o)
        nxt, gae = self.net.value(self.obs), torch.zeros(c.envs)
        adv = torch.empty_like(rew)
        for t in reversed(range(c.horizon)):
            live = 1 - done[t]
            delta = rew[t] + c.gamma * nxt * live - val[t]
            gae = delta + c.gamma * c.lam * live * gae
            adv[t], nxt = gae, val[t]
        return [v.flatten(0, 1) for v in (obs, act, logp, adv, adv + val)], rew.mean().item()

    def update(self, batch):
        c = self.cfg
        obs, act, logp, adv, ret = batch
        n = len(adv)
        for _ in range(c.epochs):
            for idx in torch.randperm(n).split(c.minibatch):
                d = self.net.dist(obs[idx])
                ratio = (d.log_prob(act[idx]).squeeze(-1) - logp[idx]).exp()
                a = adv[idx]
                a = (a - a.mean()) / (a.std() + 1e-8)
                policy = -torch.min(ratio * a, ratio.clamp(1 - c.clip, 1 + c.clip) * a).mean()
                value = 0.5 * (self.net.value(obs[idx]) - ret[idx]).square().mean()
                loss = policy + value - c.entropy * d.entropy().mean()
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.opt.step()
                self.sched.step()
        return loss.item()

    def run(self):
        for i in range(self.cfg.iterations):
            batch, reward = self.rollout()
            loss = self.update(batch)
            print(f"iteration {i:2d}  reward {reward:.3f}  loss {loss:.4f}")


if __name__ == "__main__":
    PPO(Cfg()).run()
