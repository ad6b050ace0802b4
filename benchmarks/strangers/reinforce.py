"""REINFORCE with a learned baseline: balance a pole on a cart. One episode, one update."""

import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class CartPole:
    gravity, mass_cart, mass_pole, length, force, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=4)
        self.t = 0
        return self.state.astype(np.float32)

    def step(self, action):
        x, v, theta, omega = self.state
        force = self.force if action == 1 else -self.force
        total = self.mass_cart + self.mass_pole
        pole = self.mass_pole * self.length
        temp = (force + pole * omega**2 * math.sin(theta)) / total
        acc_theta = (self.gravity * math.sin(theta) - math.cos(theta) * temp) / (
            self.length * (4.0 / 3.0 - self.mass_pole * math.cos(theta) ** 2 / total)
        )
        acc_x = temp - pole * acc_theta * math.cos(theta) / total
        self.state = np.array(
            [
                x + self.tau * v,
                v + self.tau * acc_x,
                theta + self.tau * omega,
                omega + self.tau * acc_theta,
            ]
        )
        self.t += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        return self.state.astype(np.float32), 1.0, fallen or self.t >= 200


class ActorCritic(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.ReLU())
        self.actor = nn.Linear(hidden, 2)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, state):
        h = self.body(state)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


def run_episode(env, model):
    log_probs, values, rewards = [], [], []
    state, done = env.reset(), False
    while not done:
        dist, value = model(torch.from_numpy(state))
        action = dist.sample()
        state, reward, done = env.step(action.item())
        log_probs.append(dist.log_prob(action))
        values.append(value)
        rewards.append(reward)
    return log_probs, values, rewards


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gamma", type=float, default=0.98)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    env = CartPole(np.random.RandomState(args.seed))
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    running_length = 10.0
    for episode in range(1, args.steps + 1):
        log_probs, values, rewards = run_episode(env, model)
        returns, total = [], 0.0
        for r in reversed(rewards):
            total = r + args.gamma * total
            returns.insert(0, total)
        returns = torch.tensor(returns) / 50.0
        values = torch.stack(values)
        advantage = returns - values.detach()
        policy_loss = -(torch.stack(log_probs) * advantage).mean()
        value_loss = nn.functional.smooth_l1_loss(values, returns)
        loss = policy_loss + value_loss

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

        running_length = 0.95 * running_length + 0.05 * len(rewards)
        if episode <= 100 or episode % 5 == 0:
            print(f"step {episode} loss {loss.item():.8f} length {running_length:.1f}")


if __name__ == "__main__":
    main()
