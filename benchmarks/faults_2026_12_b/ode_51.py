"""Neural ODE fitted to noisy Lotka-Volterra-like trajectories with a hand-written RK4."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn


def true_field(z):
    a, b = z[..., 0], z[..., 1]
    return torch.stack([a * (1.1 - 0.6 * b), b * (0.5 * a - 0.8)], dim=-1)


def rk4(field, z, dt, steps):
    path = [z]
    for _ in range(steps):
        k1 = field(z)
        k2 = field(z + 0.5 * dt * k1)
        k3 = field(z + 0.5 * dt * k2)
        k4 = field(z + dt * k3)
        z = z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(z)
    return torch.stack(path)


def simulate(n, length, dt, gen):
    z0 = 0.5 + 2 * torch.rand(n, 2, generator=gen)
    fine = rk4(true_field, z0, dt / 4, length * 4)
    clean = fine[::4]
    return clean + 0.02 * torch.randn(clean.shape, generator=gen)


class Field(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 2),
        )

    def forward(self, z):
        return self.net(z)


def windows(paths, length, batch, gen):
    """Random windows from random trajectories, forever."""
    total, count, _ = paths.shape
    span = torch.arange(length + 1).unsqueeze(1)
    while True:
        who = torch.randint(0, count, (batch,), generator=gen)
        start = torch.randint(0, total - length, (batch,), generator=gen)
        yield paths[start + span, who]


def main(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    train = simulate(256, 200, args.dt, gen)
    test = simulate(64, 60, args.dt, gen)
    field = Field(args.width)
    opt = torch.optim.AdamW(field.parameters(), lr=args.lr, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    source = windows(train, args.horizon, args.batch, gen)

    with tempfile.TemporaryDirectory() as tmp:
        ckpt = os.path.join(tmp, "field.pt")
        best = float("inf")
        for step in range(1, args.steps + 1):
            target = next(source)
            path = rk4(field, target[0], args.dt, args.horizon)
            loss = (path - target).square().mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(field.parameters(), 1.0)
            opt.step()
            sched.step()
            if step % 50 == 0:
                with torch.no_grad():
                    err = (rk4(field, test[0], args.dt, 60) - test).square().mean().item()
                print(f"step {step:4d}  loss {loss.item():.5f}  grad {norm.item():.3f}  rollout {err:.4f}")
                if err < best:
                    best = err
                    torch.save({"field": field.state_dict(), "opt": opt.state_dict(), "step": step}, ckpt)
        field.load_state_dict(torch.load(ckpt)["field"])
        print(f"best rollout error {best:.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--horizon", type=int, default=16)
    p.add_argument("--width", type=int, default=96)
    p.add_argument("--dt", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=31)
    main(p.parse_args())
