"""PINN for the 2-D convection-diffusion equation u_t + c.grad(u) = nu * lap(u) on the unit square."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    width: int = 64
    depth: int = 4
    collocation: int = 1500
    boundary: int = 256
    initial: int = 256
    steps: int = 400
    lr: float = 2e-3
    nu: float = 0.02
    cx: float = 0.6
    cy: float = 0.3
    seed: int = 11


class Field(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [nn.Linear(3, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, p):
        return self.net(p)


def first(model, p, axis):
    u = model(p)
    g = torch.autograd.grad(u, p, torch.ones_like(u), create_graph=True)[0]
    return g[:, axis]


def second(model, p, axis):
    g = first(model, p, axis)
    return torch.autograd.grad(g, p, torch.ones_like(g), create_graph=True)[0][:, axis]


class Problem:
    """Samples points and evaluates the residuals."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)

    def rand(self, n, d=3):
        return torch.rand(n, d, generator=self.gen)

    @staticmethod
    def bump(xy):
        return torch.exp(-60 * ((xy - 0.3) ** 2).sum(1))

    def residual(self, model):
        c = self.cfg
        p = self.rand(c.collocation).requires_grad_(True)
        u_x = first(model, p, 0)
        u_y = first(model, p, 1)
        u_t = first(model, p, 2)
        lap = second(model, p, 0) + second(model, p, 1)
        return (u_t + c.cx * u_x + c.cy * u_y - c.nu * lap).square().mean()

    def boundary(self, model):
        p = self.rand(self.cfg.boundary)
        side = torch.randint(0, 2, (p.size(0),), generator=self.gen)
        value = torch.randint(0, 2, (p.size(0),), generator=self.gen).float()
        p[torch.arange(p.size(0)), side] = value
        return model(p).square().mean()

    def initial(self, model):
        p = self.rand(self.cfg.initial)
        p[:, 2] = 0.0
        return (model(p).squeeze(1) - self.bump(p[:, :2])).square().mean()


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = Field(cfg.width, cfg.depth)
        self.problem = Problem(cfg)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.steps)

    def step(self):
        res = self.problem.residual(self.model)
        bnd = self.problem.boundary(self.model)
        ini = self.problem.initial(self.model)
        loss = res + 5 * bnd + 20 * ini
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return res, bnd, ini

    def fit(self):
        for k in range(self.cfg.steps):
            parts = self.step()
            if k % 50 == 0:
                res, bnd, ini = (v.item() for v in parts)
                print(f"{k:4d}  residual {res:.5f}  boundary {bnd:.5f}  initial {ini:.5f}")


if __name__ == "__main__":
    trainer = Trainer(Config())
    trainer.fit()
    with torch.no_grad():
        probe = torch.tensor([[0.3, 0.3, 0.0], [0.5, 0.4, 0.3]])
        print("probe", trainer.model(probe).squeeze(1).tolist())
