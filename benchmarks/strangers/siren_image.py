# Fit a SIREN (sine network) to a photograph: (x, y) -> (r, g, b).
# Each step sees a random subset of the pixels.
import random
import sys

import numpy as np
import torch
from sklearn.datasets import load_sample_image
from torch import nn

steps = 950
seed = 0
if "--steps" in sys.argv:
    steps = int(sys.argv[sys.argv.index("--steps") + 1])
if "--seed" in sys.argv:
    seed = int(sys.argv[sys.argv.index("--seed") + 1])

random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)


class SineLayer(nn.Module):
    def __init__(self, n_in, n_out, omega=30.0, first=False):
        super().__init__()
        self.omega = omega
        self.linear = nn.Linear(n_in, n_out)
        bound = 1 / n_in if first else np.sqrt(6 / n_in) / omega
        with torch.no_grad():
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Siren(nn.Module):
    def __init__(self, hidden=256, layers=3):
        super().__init__()
        blocks = [SineLayer(2, hidden, first=True)]
        blocks += [SineLayer(hidden, hidden) for _ in range(layers)]
        self.net = nn.Sequential(*blocks, nn.Linear(hidden, 3))

    def forward(self, coords):
        return self.net(coords)


image = torch.tensor(load_sample_image("china.jpg")[::2, ::2].copy()).float() / 127.5 - 1
height, width, _ = image.shape
ys, xs = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
coords = torch.stack([xs, ys], dim=-1).reshape(-1, 2)
pixels = image.reshape(-1, 3)

model = Siren()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

for step in range(1, steps + 1):
    idx = torch.randint(0, coords.shape[0], (8192,))
    pred = model(coords[idx])
    loss = ((pred - pixels[idx]) ** 2).mean()

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

    psnr = 10 * torch.log10(4 / loss.detach())
    print(f"step {step} loss {loss.item():.8f} psnr {psnr.item():.2f}")
