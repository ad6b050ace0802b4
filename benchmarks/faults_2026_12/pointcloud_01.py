"""Autoencoder of point clouds of simple solids with the Chamfer loss."""

import torch
from torch import nn


def clouds(batch, points):
    z = torch.randn(batch, points, 3)
    kind = torch.randint(0, 2, (batch, 1, 1))
    sphere = z / z.norm(dim=-1, keepdim=True)
    box = z / z.abs().amax(-1, keepdim=True)
    scale = 0.5 + torch.rand(batch, 1, 3)
    return torch.where(kind == 1, sphere, box) * scale


def nearest(source, target):
    best = []
    for point in source:
        best.append(((target - point) ** 2).sum(1).min())
    return torch.stack(best)


def chamfer(a, b):
    total = 0.0
    for one, two in zip(a, b):
        total = total + nearest(one, two).mean() + nearest(two, one).mean()
    return total / len(a)


class PointAE(nn.Module):
    def __init__(self, points=48, code=128):
        super().__init__()
        self.points = points
        self.enc = nn.Sequential(
            nn.Conv1d(3, 64, 1),
            nn.ReLU(),
            nn.Conv1d(64, 256, 1),
            nn.ReLU(),
            nn.Conv1d(256, code, 1),
        )
        self.dec = nn.Sequential(
            nn.Linear(code, 896),
            nn.ReLU(),
            nn.Linear(896, 896),
            nn.ReLU(),
            nn.Linear(896, points * 3),
        )

    def forward(self, x):
        z = self.enc(x.transpose(1, 2)).amax(2)
        return self.dec(z).view(-1, self.points, 3)


def main():
    torch.manual_seed(0)
    model = PointAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(65):
        x = clouds(4, 48)
        loss = chamfer(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
