"""Eikonal equation |grad u| = 1 around a circle."""

import torch
from torch import nn


class Sdf(nn.Module):
    def __init__(self, width=192, depth=3):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.rest = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.sin(4 * self.first(x))
        for layer in self.rest:
            h = torch.sin(layer(h))
        return self.last(h)


def derivatives(u, x):
    g = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    xx = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)[0][:, 0]
    yy = torch.autograd.grad(g[:, 1].sum(), x, create_graph=True)[0][:, 1]
    return {"grad": g, "laplace": xx + yy}


def points(n):
    box = 2 * torch.rand(n, 2) - 1
    angle = 6.2832 * torch.rand(n)
    ring = 0.5 * torch.stack([angle.cos(), angle.sin()], 1)
    return box, ring


def main():
    torch.manual_seed(0)
    u = Sdf()
    optimizer = torch.optim.Adam(u.parameters(), lr=5e-4)
    for it in range(130):
        box, ring = points(320)
        box.requires_grad_(True)
        d = derivatives(u(box), box)
        eikonal = ((d["grad"].norm(dim=1) - 1) ** 2).mean()
        surface = u(ring).abs().mean()
        loss = eikonal + 10 * surface
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 26 == 0:
            bend = d["laplace"].detach().abs().mean().item()
            print(f"{it:4d} {loss.item():.4f} bend {bend:.3f}")


main()
