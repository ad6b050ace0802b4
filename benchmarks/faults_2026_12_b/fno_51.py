"""Fourier neural operator: maps a viscosity-weighted initial profile to the solution of Burgers' equation."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def random_profiles(n, grid, rng, modes=12):
    x = np.linspace(0, 2 * np.pi, grid, endpoint=False)
    k = np.arange(1, modes + 1)
    amp = rng.normal(size=(n, modes)) / k
    phase = rng.uniform(0, 2 * np.pi, size=(n, modes))
    return np.einsum("nk,nkx->nx", amp, np.sin(k[None, :, None] * x + phase[:, :, None]))


def burgers(u0, nu=0.08, t_end=0.5, steps=150):
    """Pseudo-spectral solver with an integrating factor, all samples at once."""
    n = u0.shape[1]
    k = np.fft.rfftfreq(n, 1.0 / n)
    dt = t_end / steps
    decay = np.exp(-nu * k ** 2 * dt)
    mask = k < n / 3
    v = np.fft.rfft(u0, axis=1)
    for _ in range(steps):
        u = np.fft.irfft(v, n, axis=1)
        v = decay * (v - 0.5j * k * dt * np.fft.rfft(u * u, axis=1) * mask)
    return np.fft.irfft(v, n, axis=1)


class SpectralConv(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, 2) / channels)

    def forward(self, x):
        spec = torch.fft.rfft(x, dim=-1)
        w = torch.view_as_complex(self.weight)
        mixed = torch.einsum("bim,iom->bom", spec[..., : self.modes], w)
        out = torch.zeros_like(spec)
        out[..., : self.modes] = mixed
        return torch.fft.irfft(out, n=x.size(-1), dim=-1)


class FNO(nn.Module):
    def __init__(self, channels=48, modes=16, depth=4):
        super().__init__()
        self.lift = nn.Conv1d(2, channels, 1)
        self.spectral = nn.ModuleList(SpectralConv(channels, modes) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.Conv1d(channels, 128, 1), nn.GELU(), nn.Conv1d(128, 1, 1))

    def forward(self, x):
        h = self.lift(x)
        for spec, loc in zip(self.spectral, self.local):
            h = nn.functional.gelu(spec(h) + loc(h))
        return self.head(h)


def relative_l2(pred, true):
    return ((pred - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).mean()


def run(args):
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    u0 = random_profiles(args.samples + 128, args.grid, rng)
    u1 = burgers(u0)
    pos = np.broadcast_to(np.linspace(0, 1, args.grid), u0.shape)
    inputs = torch.from_numpy(np.stack([u0, pos], axis=1))
    targets = torch.from_numpy(u1[:, None])
    train = TensorDataset(inputs[: args.samples], targets[: args.samples])
    loader = DataLoader(train, batch_size=args.batch, shuffle=True, drop_last=True)
    test_x, test_y = inputs[args.samples :], targets[args.samples :]

    model = FNO().to(inputs.dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr * 2, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            loss = relative_l2(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            err = relative_l2(model(test_x), test_y).item()
        print(f"epoch {epoch}  train {total / len(loader):.4f}  test {err:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--grid", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=5)
    run(parser.parse_args())
