"""Heat equation u_t = k u_xx on the unit square of space and time."""

import math

import torch
from torch import nn


class Solution(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, xt):
        return self.net(xt)


def residual(u, xt, k):
    g = torch.autograd.grad(u(xt).sum(), xt, create_graph=True)[0]
    second = torch.autograd.grad(g[:, 0].sum(), xt, create_graph=True)[0]
    return g[:, 1] - k * second[:, 0]


def main():
    torch.manual_seed(0)
    u, k = Solution(), 0.1
    optimizer = torch.optim.Adam(u.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    x = torch.linspace(0, 1, 101).unsqueeze(1)
    begin, start_value = torch.cat([x, torch.zeros_like(x)], 1), torch.sin(math.pi * x)
    walls = torch.cat([torch.cat([torch.full_like(x, w), x], 1) for w in (0.0, 1.0)])
    for it in range(160):
        inside = torch.rand(640, 2, requires_grad=True)
        physics = residual(u, inside, k).square().mean()
        data = (u(begin) - start_value).square().mean() + u(walls).square().mean()
        loss = physics + 10 * data
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if it % 40 == 0:
            print(it, loss.item())
    with torch.no_grad():
        exact = math.exp(-k * math.pi**2) * torch.sin(math.pi * x)
        error = (u(torch.cat([x, torch.ones_like(x)], 1)) - exact).abs().max().item()
    print("largest error at t=1:", round(error, 4))


main()
