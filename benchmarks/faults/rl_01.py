import torch
import torch.nn as nn
from torch.distributions import Categorical


class PointEnv:
    """Batch of points on a plane that should reach the origin."""

    moves = torch.tensor([[0.0, 0.1], [0.0, -0.1], [0.1, 0.0], [-0.1, 0.0], [0.0, 0.0]])

    def __init__(self, n):
        self.n = n

    def reset(self):
        self.pos = torch.rand(self.n, 2) * 2 - 1
        self.goal = torch.rand(self.n, 2) * 2 - 1
        return self.obs()

    def obs(self):
        d = self.goal - self.pos
        return torch.cat([self.pos, self.goal, d, d.norm(dim=1, keepdim=True)], 1)

    def step(self, a):
        self.pos = (self.pos + self.moves[a]).clamp(-1, 1)
        o = self.obs()
        return o, -o[:, -1]


class ActorCritic(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(7, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.pi = nn.Linear(hidden, 5)
        self.v = nn.Linear(hidden, 1)

    def forward(self, o):
        h = self.body(o)
        return self.pi(h), self.v(h).squeeze(-1)


def rollout(env, policy, horizon):
    obs, acts, rews = [], [], []
    o = env.reset()
    with torch.no_grad():
        for _ in range(horizon):
            logits, _ = policy(o)
            a = Categorical(logits=logits, validate_args=False).sample()
            obs.append(o)
            acts.append(a)
            o, r = env.step(a)
            rews.append(r)
    return torch.stack(obs), torch.stack(acts), torch.stack(rews)


def discounted(rews, gamma):
    out = torch.zeros_like(rews)
    for e in range(rews.shape[1]):
        run = 0.0
        for t in reversed(range(rews.shape[0])):
            run = rews[t, e] + gamma * run
            out[t, e] = run
    return out


def main():
    torch.manual_seed(2)
    env = PointEnv(64)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=7e-4)
    for update in range(100):
        obs, acts, rews = rollout(env, net, 40)
        ret = discounted(rews, 0.97)
        logits, values = net(obs)
        dist = Categorical(logits=logits, validate_args=False)
        adv = ret - values.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = (
            -(dist.log_prob(acts) * adv).mean()
            + 0.5 * (ret - values).pow(2).mean()
            - 0.01 * dist.entropy().mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        if update % 20 == 0:
            print("update", update, "reward", rews.mean().item())


if __name__ == "__main__":
    main()
