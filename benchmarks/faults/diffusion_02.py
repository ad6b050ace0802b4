import torch
import torch.nn as nn
import torch.nn.functional as F


def schedule(T=4000):
    t = torch.linspace(0, 1, T + 1, dtype=torch.float64)
    f = torch.cos((t + 0.008) / 1.008 * torch.pi / 2) ** 2
    betas = (1 - f[1:] / f[:-1]).clamp(max=0.999)
    return torch.cumprod(1 - betas, 0).float()


def coordinates(size, freqs=24):
    g = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    parts = []
    for k in range(freqs):
        parts += [
            torch.sin(2 ** (k / 4) * xx),
            torch.cos(2 ** (k / 4) * yy),
            torch.sin(2 ** (k / 4) * (xx + yy)),
        ]
    return torch.stack(parts)


def radial_weight(size):
    g = torch.arange(size).float()
    d = torch.cdist(torch.cartesian_prod(g, g), torch.cartesian_prod(g, g))
    return torch.exp(-d / size).mean(1).view(size, size)


class Net(nn.Module):
    def __init__(self, c=16, cond=72):
        super().__init__()
        self.cond = nn.Conv2d(cond, c, 1)
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.time = nn.Linear(1, c)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, t, coords):
        h = self.inp(x) + self.cond(coords[None]) + self.time(t[:, None])[..., None, None]
        return self.out(F.silu(self.mid(F.silu(h))))


def bars(n, size):
    img = torch.zeros(n, 1, size, size)
    for i in range(n):
        k = int(torch.randint(0, size - 4, (1,)))
        if i % 2:
            img[i, 0, k : k + 4] = 1
        else:
            img[i, 0, :, k : k + 4] = 1
    return img * 2 - 1


size = 40
torch.manual_seed(0)
data = bars(512, size)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
for step in range(70):
    abar, coords, weight = schedule(), coordinates(size), radial_weight(size)
    x0 = data[torch.randint(0, len(data), (16,))]
    t = torch.randint(0, len(abar), (len(x0),))
    a = abar[t].view(-1, 1, 1, 1)
    eps = torch.randn_like(x0)
    pred = net(a.sqrt() * x0 + (1 - a).sqrt() * eps, t / len(abar), coords)
    loss = ((pred - eps) ** 2 * weight).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 14 == 0:
        print(f"{step}/70 {loss.item():.4f}")
