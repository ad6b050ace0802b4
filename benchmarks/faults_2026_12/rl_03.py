import math
import random

import torch
from torch import nn
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        self.state = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return self.state

    def step(self, action):
        x, v, th, w = self.state
        force = 10.0 if action == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        temp = (force + 0.05 * w * w * s) / 1.1
        acc = (9.8 * s - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        lin = temp - 0.05 * acc * c / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * lin, th + 0.02 * w, w + 0.02 * acc]
        self.steps += 1
        lost = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        done = lost or self.steps >= 200
        return self.state, 0.0 if lost else 1.0, done


class Policy(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.pi = nn.Linear(hidden, 2)
        self.v = nn.Linear(hidden, 1)

    def forward(self, s):
        h = self.trunk(s)
        return self.pi(h), self.v(h).squeeze(-1)


def rollout(envs, policy, length):
    states, actions, rewards, dones = [], [], [], []
    for _ in range(length):
        s = torch.tensor([e.state for e in envs])
        with torch.no_grad():
            a = Categorical(logits=policy(s)[0]).sample()
        row_r, row_d = [], []
        for env, action in zip(envs, a.tolist()):
            _, r, d = env.step(action)
            if d:
                env.reset()
            row_r.append(r)
            row_d.append(d)
        states.append(s)
        actions.append(a)
        rewards.append(torch.tensor(row_r))
        dones.append(torch.tensor(row_d).float())
    return torch.stack(states), torch.stack(actions), torch.stack(rewards), torch.stack(dones)


def returns(rewards, dones, last, gamma=0.98):
    out = []
    for r, d in zip(rewards.flip(0), dones.flip(0)):
        last = r + gamma * last * (1 - d)
        out.append(last)
    return torch.stack(out[::-1])


def main():
    torch.manual_seed(0)
    envs = [CartPole(i) for i in range(600)]
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for update in range(110):
        s, a, r, d = rollout(envs, policy, 8)
        with torch.no_grad():
            last = policy(torch.tensor([e.state for e in envs]))[1]
        goal = returns(r, d, last)
        logits, value = policy(s)
        dist = Categorical(logits=logits)
        advantage = goal - value.detach()
        loss = (
            -(dist.log_prob(a) * advantage).mean()
            + 0.5 * (goal - value).pow(2).mean()
            - 0.01 * dist.entropy().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 20 == 0:
            print(update, round(loss.item(), 4), round(value.mean().item(), 3))


if __name__ == "__main__":
    main()
