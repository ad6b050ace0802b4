# Deep hedging of a European call: policy network trained on simulated Heston paths.
import math

import torch
import torch.nn as nn

torch.manual_seed(3)
torch.autograd.set_detect_anomaly(True)

N_STEPS = 30
N_PATHS = 512
STRIKE = 1.0
COST = 2e-3
DT = 1 / 252
ITERATIONS = 400


def simulate(n_paths, n_steps, kappa=1.5, theta=0.04, xi=0.4, rho=-0.6):
    spot = torch.ones(n_paths)
    var = torch.full((n_paths,), theta)
    spots, variances = [spot], [var]
    z = torch.randn(n_steps, 2, n_paths)
    for t in range(n_steps):
        dw = z[t, 0]
        dv = rho * z[t, 0] + math.sqrt(1 - rho ** 2) * z[t, 1]
        spot = spot * torch.exp(-0.5 * var * DT + torch.sqrt(var * DT) * dw)
        var = (var + kappa * (theta - var) * DT + xi * torch.sqrt(var * DT) * dv).clamp(min=1e-5)
        spots.append(spot)
        variances.append(var)
    return torch.stack(spots), torch.stack(variances)


class HedgePolicy(nn.Module):
    """Delta at each date from log-moneyness, variance, time left and the position held."""

    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = torch.tanh(self.hid(h))
        return torch.sigmoid(self.out(h)).squeeze(-1)


class EntropicRisk(nn.Module):
    def __init__(self, aversion=20.0):
        super().__init__()
        self.aversion = aversion

    def forward(self, pnl):
        n = math.log(pnl.numel())
        return (torch.logsumexp(-self.aversion * pnl, dim=0) - n) / self.aversion


def hedge(policy, spots, variances):
    held = torch.zeros(spots.shape[1])
    pnl = torch.zeros(spots.shape[1])
    for t in range(N_STEPS):
        left = torch.full_like(held, (N_STEPS - t) * DT)
        features = torch.stack([torch.log(spots[t] / STRIKE) * 10, variances[t] * 20, left * 10, held], dim=1)
        target = policy(features)
        pnl = pnl - COST * spots[t] * (target - held).abs()
        pnl = pnl + target * (spots[t + 1] - spots[t])
        held = target
    payoff = (spots[-1] - STRIKE).clamp(min=0)
    return pnl - payoff


def train():
    policy = HedgePolicy()
    risk = EntropicRisk()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=ITERATIONS)
    average = 0.0
    for it in range(1, ITERATIONS + 1):
        spots, variances = simulate(N_PATHS, N_STEPS)
        optimizer.zero_grad()
        loss = risk(hedge(policy, spots, variances))
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        average += loss.item()
        if it % 40 == 0:
            print(f"it {it:4d}  risk {average / 40:.5f}  lr {scheduler.get_last_lr()[0]:.2e}")
            average = 0.0
    return policy


def report(policy):
    with torch.no_grad():
        spots, variances = simulate(4096, N_STEPS)
        pnl = hedge(policy, spots, variances)
    cvar = pnl.sort().values[: len(pnl) // 20].mean()
    print(f"mean pnl {pnl.mean():.5f}  std {pnl.std():.5f}  cvar95 {cvar:.5f}")


if __name__ == "__main__":
    report(train())
