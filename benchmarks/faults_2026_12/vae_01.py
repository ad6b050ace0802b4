"""Beta VAE on digits with a warm-up of the KL term."""

from contextlib import closing

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class VAE(nn.Module):
    def __init__(self, latent=12, width=512):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.mean, self.log_var = nn.Linear(width, latent), nn.Linear(width, latent)
        self.dec = nn.Sequential(
            nn.Linear(latent, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 64),
        )

    def forward(self, x):
        h = self.enc(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.dec(z), mean, log_var


def elbo(back, x, mean, log_var, beta):
    fit = F.binary_cross_entropy_with_logits(back, x, reduction="sum") / len(x)
    kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum() / len(x)
    return fit + beta * kl, kl


def endless(x, size):
    while True:
        yield from (x[i] for i in torch.randperm(len(x)).split(size)[:-1])


def watch_shapes(model):
    """Prints the shape behind each layer once, then takes its hooks away."""
    handles = []

    def note(module, args, out):
        print(type(module).__name__, tuple(out.shape))

    for m in model.modules():
        if isinstance(m, nn.Linear):
            handles.append(m.register_forward_hook(note))
    model(torch.zeros(1, 64))
    for h in handles:
        h.remove()


torch.manual_seed(0)
data = torch.tensor(load_digits().data, dtype=torch.float32) / 16
vae = VAE()
watch_shapes(vae)
optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
running = 0.0
with closing(endless(data, 320)) as batches:
    for step in range(180):
        x = next(batches)
        back, mean, log_var = vae(x)
        loss, kl = elbo(back, x, mean, log_var, min(1.0, step / 100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.95 * running + 0.05 * loss.detach()
        if step % 60 == 59:
            print(step, running.item(), kl.item())
