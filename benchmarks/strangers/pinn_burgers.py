"""Physics-informed network for Burgers' equation  u_t + u u_x = (0.01 / pi) u_xx."""

import argparse
import itertools
import math
import random

import numpy as np
import torch
from torch import nn


class PINN(nn.Module):
    def __init__(self, width=64, depth=5):
        super().__init__()
        dims = [2] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(dims))
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for layer in self.layers[:-1]:
            h = torch.tanh(layer(h))
        return self.layers[-1](h)


def grad(outputs, inputs):
    return torch.autograd.grad(
        outputs, inputs, grad_outputs=torch.ones_like(outputs), create_graph=True
    )[0]


def residual(model, x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = model(x, t)
    u_t = grad(u, t)
    u_x = grad(u, x)
    u_xx = grad(u_x, x)
    return u_t + u * u_x - 0.01 / math.pi * u_xx


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--points", type=int, default=2000)
    args = p.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = PINN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1000, gamma=0.5)

    x0 = torch.linspace(-1, 1, 200).unsqueeze(1)
    t0 = torch.zeros_like(x0)
    u0 = -torch.sin(math.pi * x0)
    tb = torch.linspace(0, 1, 100).unsqueeze(1)
    left, right = -torch.ones_like(tb), torch.ones_like(tb)

    for it in range(1, args.steps + 1):
        x = torch.rand(args.points, 1) * 2 - 1
        t = torch.rand(args.points, 1)
        opt.zero_grad()
        loss_pde = residual(model, x, t).pow(2).mean()
        loss_init = (model(x0, t0) - u0).pow(2).mean()
        loss_bound = model(left, tb).pow(2).mean() + model(right, tb).pow(2).mean()
        loss = loss_pde + loss_init + loss_bound
        loss.backward()
        opt.step()
        sched.step()
        if it <= 100 or it % 10 == 0:
            print(
                f"step {it} loss {loss.item():.7e} pde {loss_pde.item():.3e}"
                f" init {loss_init.item():.3e} bound {loss_bound.item():.3e}"
            )


if __name__ == "__main__":
    main()
