"""Variational autoencoder for machine telemetry, with gradient diagnostics."""
import csv
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SENSORS = 96
LATENT = 16


def telemetry(n, rng, faulty=False):
    load = rng.gamma(2.0, 1.0, (n, 4)).astype(np.float32)
    mixing = np.random.default_rng(99).normal(size=(4, SENSORS)).astype(np.float32)
    x = np.tanh(load @ mixing * 0.3) + 0.05 * rng.normal(size=(n, SENSORS)).astype(np.float32)
    if faulty:
        cols = rng.integers(0, SENSORS, (n, 5))
        x[np.arange(n)[:, None], cols] += rng.choice([-1.0, 1.0], (n, 5)).astype(np.float32)
    return torch.from_numpy(x.astype(np.float32))


class VAE(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(SENSORS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.mu = nn.Linear(width, LATENT)
        self.logvar = nn.Linear(width, LATENT)
        self.dec = nn.Sequential(nn.Linear(LATENT, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, SENSORS))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(x, out, mu, logvar, beta):
    rec = F.mse_loss(out, x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec + beta * kl, rec, kl


def gradient_norm(loss, parameters):
    grads = torch.autograd.grad(loss, parameters, retain_graph=True)
    return torch.stack([g.norm() for g in grads]).norm()


def anomaly_scores(model, x):
    model.eval()
    with torch.no_grad():
        out, _, _ = model(x)
        s = (out - x).pow(2).mean(1)
    model.train()
    return s


def train(epochs=18, batch=512):
    torch.manual_seed(17)
    rng = np.random.default_rng(17)
    x = telemetry(20_000, rng)
    normal, broken = telemetry(2000, rng), telemetry(2000, rng, faulty=True)
    model = VAE()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=1e-3)
    path = os.path.join(tempfile.mkdtemp(prefix="vae_"), "train.csv")
    step = 0
    with open(path, "w", newline="") as fh:
        log = csv.writer(fh)
        log.writerow(["step", "loss", "rec", "kl", "norm"])
        for epoch in range(epochs):
            beta = min(1.0, epoch / 4) * 0.05
            for idx in torch.randperm(len(x)).split(batch):
                xb = x[idx]
                loss, rec, kl = elbo(xb, *model(xb), beta)
                norm = gradient_norm(loss, params)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                step += 1
                log.writerow([step, loss.item(), rec.item(), kl.item(), norm.item()])
            a, b = anomaly_scores(model, normal), anomaly_scores(model, broken)
            limit = a.quantile(0.99)
            print(f"epoch {epoch} loss {loss.item():.3f} norm {norm.item():.2f} "
                  f"recall at 1% alarms {(b > limit).float().mean():.3f}")
    return model


if __name__ == "__main__":
    train()
