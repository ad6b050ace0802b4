# %% [markdown]
# # Electricity load with a patch transformer

# %%
import math

import torch
from torch import nn

torch.manual_seed(0)
PATCH, PATCHES, HORIZON = 12, 16, 24

# %%
t = torch.arange(24 * 365 * 2).float()
load = torch.stack(
    [
        (1 + 0.1 * k) * torch.sin(2 * math.pi * t / 24 + k) + 0.5 * torch.sin(2 * math.pi * t / 168)
        for k in range(8)
    ]
)
load = load + 0.2 * torch.randn_like(load)


# %%
class PatchTransformer(nn.Module):
    def __init__(self, dim=128, layers=3):
        super().__init__()
        self.inp = nn.Linear(PATCH, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(PATCHES, dim))
        layer = nn.TransformerEncoderLayer(
            dim, 4, 2 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim * PATCHES, HORIZON)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
        h = ((x - mean) / std).unflatten(1, (PATCHES, PATCH))
        h = self.body(self.inp(h) + self.pos)
        return self.out(h.flatten(1)) * std + mean


def quantile_loss(out, y, q=0.5):
    e = y - out
    return torch.maximum(q * e, (q - 1) * e).mean()


# %%
length = PATCH * PATCHES
offsets = torch.arange(length + HORIZON)
model = PatchTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
trace = []
for step in range(150):
    series = torch.randint(0, 8, (24, 1))
    start = torch.randint(0, load.shape[1] - length - HORIZON, (24, 1))
    window = load[series, start + offsets]
    loss = quantile_loss(model(window[:, :length]), window[:, length:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trace.append(loss.detach())

# %%
print(
    "first", torch.stack(trace[:10]).mean().item(), "last", torch.stack(trace[-10:]).mean().item()
)
