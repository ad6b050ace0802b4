# convolutional VAE on synthetic discs
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)
S = 32
g = torch.linspace(-1, 1, S)
yy, xx = torch.meshgrid(g, g, indexing="ij")
centre = torch.rand(3000, 2, 1, 1) - 0.5
radius = torch.rand(3000, 1, 1) * 0.4 + 0.1
data = (((xx - centre[:, 0]) ** 2 + (yy - centre[:, 1]) ** 2) < radius**2).float().unsqueeze(1)
enc = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 4, 2, 1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 4, 2, 1),
    nn.ReLU(),
    nn.Flatten(),
)
mu_head, lv_head = nn.Linear(1024, 16), nn.Linear(1024, 16)
dec = nn.Sequential(
    nn.Linear(16, 1024),
    nn.ReLU(),
    nn.Unflatten(1, (64, 4, 4)),
    nn.ConvTranspose2d(64, 32, 4, 2, 1),
    nn.ReLU(),
    nn.ConvTranspose2d(32, 16, 4, 2, 1),
    nn.ReLU(),
    nn.ConvTranspose2d(16, 1, 4, 2, 1),
)
params = [p for m in (enc, mu_head, lv_head, dec) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=1e-3)
for step in range(101):
    x = data[torch.randint(0, len(data), (96,))]
    h = enc(x)
    mu, lv = mu_head(h), lv_head(h)
    z = mu + torch.randn_like(mu) * torch.exp(0.5 * lv)
    rec = F.binary_cross_entropy_with_logits(dec(z), x, reduction="sum") / len(x)
    kl = -0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp()) / len(x)
    loss = rec + kl
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print("step", step, "rec", rec.item(), "kl", kl.item())
