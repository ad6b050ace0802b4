# %% [markdown]
# Bayes-by-backprop for a small regression network: one Gaussian posterior over all weights.

# %%
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

torch.manual_seed(17)

D_IN, WIDTH, N, BATCH = 8, 16, 6000, 2048
MC_SAMPLES, STEPS = 16, 520
SHAPES = [(D_IN, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 1), (1,)]
SIZES = [math.prod(s) for s in SHAPES]
TOTAL = sum(SIZES)

# %%
x = torch.randn(N, D_IN)
w = torch.randn(D_IN) / math.sqrt(D_IN)
y = torch.sin(2 * x @ w) + 0.3 * (x[:, 0] * x[:, 1]) + 0.1 * torch.randn(N)
x_test, y_test = x[5000:], y[5000:]
x, y = x[:5000], y[:5000]


# %%
class WeightPosterior(nn.Module):
    def __init__(self, dim, prior_scale=0.7):
        super().__init__()
        self.loc = nn.Parameter(torch.randn(dim) * 0.3)
        self.rho = nn.Parameter(torch.full((dim,), -4.0))
        self.prior_scale = prior_scale

    @property
    def scale(self):
        return F.softplus(self.rho) + 1e-4

    def distribution(self):
        return MultivariateNormal(self.loc, covariance_matrix=torch.diag(self.scale ** 2))

    def prior(self):
        eye = torch.eye(self.loc.numel())
        return MultivariateNormal(torch.zeros_like(self.loc), covariance_matrix=eye * self.prior_scale ** 2)


def network(flat, inputs):
    """flat: (samples, TOTAL); inputs: (batch, D_IN) -> (samples, batch)."""
    w1, b1, w2, b2, w3, b3 = (p.view(-1, *s) for p, s in zip(flat.split(SIZES, dim=1), SHAPES))
    h = torch.tanh(inputs @ w1 + b1.unsqueeze(1))
    h = torch.tanh(h @ w2 + b2.unsqueeze(1))
    return (h @ w3 + b3.unsqueeze(1)).squeeze(-1)


# %%
posterior = WeightPosterior(TOTAL)
log_noise = nn.Parameter(torch.tensor(-1.0))
optimizer = torch.optim.Adam([*posterior.parameters(), log_noise], lr=5e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)


def negative_elbo(xb, yb):
    q = posterior.distribution()
    samples = q.rsample((MC_SAMPLES,))
    pred = network(samples, xb)
    log_lik = Normal(pred, log_noise.exp()).log_prob(yb).mean() * len(x)
    kl = kl_divergence(q, posterior.prior())
    return (kl - log_lik) / len(x), kl


# %%
for step in range(STEPS):
    pick = torch.randint(0, len(x), (BATCH,))
    loss, kl = negative_elbo(x[pick], y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 40 == 0:
        print(f"step {step:3d}  -elbo {loss.item():.4f}  kl {kl.item():.1f}  noise {log_noise.exp().item():.3f}")

# %%
with torch.no_grad():
    draws = network(posterior.distribution().sample((64,)), x_test)
    mean, std = draws.mean(0), (draws.var(0) + (2 * log_noise).exp()).sqrt()
    rmse = (mean - y_test).square().mean().sqrt()
    inside = ((y_test - mean).abs() < 1.96 * std).float().mean()
print(f"weights {TOTAL}  test rmse {rmse.item():.3f}  95% coverage {inside.item():.3f}")
