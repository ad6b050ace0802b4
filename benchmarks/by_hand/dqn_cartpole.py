"""Dueling double DQN on CartPole (own small copy of the environment so that gym is not needed)."""
import math
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

SEED = 0
BATCH_SIZE = 128
GAMMA = 0.99
EPS_START = 1.0
EPS_END = 0.05
EPS_DECAY = 1500
LR = 5e-4
BUFFER = 10000
WARMUP = 500
TARGET_UPDATE = 250
TOTAL_STEPS = 8000

random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward", "done"))


class CartPole:
    """Same dynamics as CartPole-v1."""

    def __init__(self, seed=0):
        self.rng = np.random.RandomState(seed)
        self.gravity = 9.8
        self.masscart = 1.0
        self.masspole = 0.1
        self.total_mass = self.masscart + self.masspole
        self.length = 0.5
        self.polemass_length = self.masspole * self.length
        self.force_mag = 10.0
        self.tau = 0.02
        self.theta_limit = 12 * 2 * math.pi / 360
        self.x_limit = 2.4

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=(4,))
        self.t = 0
        return np.array(self.state, dtype=np.float32)

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = self.force_mag if action == 1 else -self.force_mag
        costheta = np.cos(theta)
        sintheta = np.sin(theta)
        temp = (force + self.polemass_length * theta_dot ** 2 * sintheta) / self.total_mass
        thetaacc = (self.gravity * sintheta - costheta * temp) / (
            self.length * (4.0 / 3.0 - self.masspole * costheta ** 2 / self.total_mass))
        xacc = temp - self.polemass_length * thetaacc * costheta / self.total_mass
        x = x + self.tau * x_dot
        x_dot = x_dot + self.tau * xacc
        theta = theta + self.tau * theta_dot
        theta_dot = theta_dot + self.tau * thetaacc
        self.state = np.array([x, x_dot, theta, theta_dot])
        self.t += 1
        done = bool(abs(x) > self.x_limit or abs(theta) > self.theta_limit)
        truncated = self.t >= 500
        return np.array(self.state, dtype=np.float32), 1.0, done, truncated


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_obs, n_actions, hidden=256):
        super().__init__()
        self.layer1 = nn.Linear(n_obs, hidden)
        self.layer2 = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        adv = self.advantage(x)
        return self.value(x) + adv - adv.mean(dim=1, keepdim=True)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
env = CartPole(SEED)
policy_net = DQN(4, 2).to(device)
target_net = DQN(4, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.Adam(policy_net.parameters(), lr=LR)
memory = ReplayMemory(BUFFER)


def select_action(state, step):
    eps = EPS_END + (EPS_START - EPS_END) * math.exp(-step / EPS_DECAY)
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        s = torch.tensor(state, dtype=torch.float32, device=device).unsqueeze(0)
        return policy_net(s).argmax(dim=1).item()


def optimize_model():
    transitions = memory.sample(BATCH_SIZE)
    batch = Transition(*zip(*transitions))
    state = torch.tensor(np.array(batch.state), dtype=torch.float32, device=device)
    action = torch.tensor(batch.action, dtype=torch.int64, device=device).unsqueeze(1)
    next_state = torch.tensor(np.array(batch.next_state), dtype=torch.float32, device=device)
    reward = torch.tensor(batch.reward, dtype=torch.float32, device=device)
    done = torch.tensor(batch.done, dtype=torch.float32, device=device)

    q = policy_net(state).gather(1, action).squeeze(1)
    with torch.no_grad():
        best = policy_net(next_state).argmax(1, keepdim=True)
        next_q = target_net(next_state).gather(1, best).squeeze(1)
    target = reward + GAMMA * next_q * (1 - done)
    loss = F.smooth_l1_loss(q, target)

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main():
    state = env.reset()
    ep_return, returns, losses = 0.0, [], []
    for step in range(TOTAL_STEPS):
        action = select_action(state, step)
        next_state, reward, done, truncated = env.step(action)
        memory.push(state, action, next_state, reward, done)
        ep_return += reward
        state = next_state
        if done or truncated:
            returns.append(ep_return)
            ep_return = 0.0
            state = env.reset()

        if len(memory) >= WARMUP:
            losses.append(optimize_model())
            if step % TARGET_UPDATE == 0:
                target_net.load_state_dict(policy_net.state_dict())

        if (step + 1) % 500 == 0:
            recent = returns[-10:]
            avg_loss = sum(losses[-500:]) / max(1, len(losses[-500:]))
            print(f"step {step + 1:6d}  episodes {len(returns):4d}  "
                  f"return(10) {sum(recent) / max(1, len(recent)):6.1f}  loss {avg_loss:.5f}")
    torch.save(policy_net.state_dict(), "dqn_cartpole.pt")


if __name__ == "__main__":
    main()
