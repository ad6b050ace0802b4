# VAE on faces-like blobs. Was a notebook, cells kept in order.
# %% imports
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)

# %% settings
LATENT = 32
BATCH = 64
EPOCHS = 10
WARMUP = 100

# %% data: each picture is a face disc with two eyes and a mouth


def draw_faces(n, size=32):
    yy, xx = np.mgrid[:size, :size].astype(np.float32)
    c = 16 + np.random.randn(n, 2, 1, 1) * 2
    r = 9 + np.random.rand(n, 1, 1) * 4
    d = np.sqrt((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2)
    face = 1 / (1 + np.exp(d - r))
    gap = 3 + np.random.rand(n, 1, 1) * 2
    for s in (-1, 1):
        e = (yy - c[:, 0] + 3) ** 2 + (xx - c[:, 1] + s * gap) ** 2
        face = face - 0.8 * np.exp(-e / 2.0)
    curve = np.random.randn(n, 1, 1) * 0.1
    m = (yy - c[:, 0] - 4 - curve * (xx - c[:, 1]) ** 2) ** 2
    face = face - 0.6 * np.exp(-m) * (np.abs(xx - c[:, 1]) < 4)
    return np.clip(face, 0, 1).astype(np.float32)[:, None]


faces = torch.from_numpy(draw_faces(2048))
loader = DataLoader(TensorDataset(faces), batch_size=BATCH, shuffle=True, drop_last=True)

# %% model


class VAE(nn.Module):
    def __init__(self, z=LATENT, w=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, w, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(w, 2 * w, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4 * w * 16, 128), nn.SiLU(),
        )
        self.mu = nn.Linear(128, z)
        self.logvar = nn.Linear(128, z)
        self.dec_in = nn.Linear(z, 4 * w * 16)
        self.dec = nn.Sequential(
            nn.SiLU(), nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1),
            nn.SiLU(), nn.ConvTranspose2d(2 * w, w, 4, 2, 1),
            nn.SiLU(), nn.ConvTranspose2d(w, 1, 4, 2, 1),
        )
        self.w = w
        self.register_buffer("prior_mean", torch.zeros(z))
        self.register_buffer("prior_cov", torch.eye(z))

    def posterior(self, x):
        h = self.enc(x)
        var = self.logvar(h).clamp(-8, 4).exp()
        return MultivariateNormal(self.mu(h), torch.diag_embed(var))

    def prior(self, n):
        return MultivariateNormal(self.prior_mean.expand(n, -1), self.prior_cov)

    def decode(self, z):
        return self.dec(self.dec_in(z).view(-1, 4 * self.w, 4, 4))

    def forward(self, x):
        q = self.posterior(x)
        recon = self.decode(q.rsample())
        kl = kl_divergence(q, self.prior(len(x)))
        return recon, kl


def elbo(recon, x, kl, beta):
    rec = F.binary_cross_entropy_with_logits(recon, x, reduction="none").sum((1, 2, 3))
    return (rec + beta * kl).mean(), rec.mean()


# %% training
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
history = []
step = 0
for epoch in range(EPOCHS):
    for (x,) in loader:
        beta = min(1.0, step / WARMUP)
        recon, kl = vae(x)
        loss, rec = elbo(recon, x, kl, beta)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
    history.append(loss.item())
    print(f"epoch {epoch:2d} elbo {history[-1]:.2f} rec {rec.item():.2f} kl {kl.mean().item():.2f}")

# %% look at a few samples
with torch.no_grad():
    pictures = torch.sigmoid(vae.decode(torch.randn(8, LATENT)))
print("sample range", pictures.min().item(), pictures.max().item())
