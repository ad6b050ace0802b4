import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Watcher(threading.Thread):
    def __init__(self, limit):
        super().__init__(daemon=True, name="watcher")
        self.limit = limit
        self.beat = time.time()
        self.best = {}
        self.done = False

    def run(self):
        history = []
        while not self.done:
            now = time.time()
            age = now - self.beat
            history.append(age)
            if len(history) > 2000:
                self.best["age"] = max(history)
                history = sorted(history)[-100:]
            if age > self.limit:
                print("stalled for", age)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c = nn.Conv2d(i, o, 3, stride=2, padding=1)
        self.n = nn.GroupNorm(8, o)

    def forward(self, x):
        return F.silu(self.n(self.c(x)))


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c = nn.Conv2d(i, o, 3, padding=1)
        self.n = nn.GroupNorm(8, o)

    def forward(self, x):
        return F.silu(self.n(self.c(F.interpolate(x, scale_factor=2))))


class ConvVAE(nn.Module):
    def __init__(self, z=32):
        super().__init__()
        self.enc = nn.Sequential(Down(1, 16), Down(16, 32), Down(32, 64))
        self.stats = nn.Linear(64 * 16, 2 * z)
        self.grow = nn.Linear(z, 64 * 16)
        self.dec = nn.Sequential(Up(64, 32), Up(32, 16), Up(16, 16), nn.Conv2d(16, 1, 3, padding=1))

    def forward(self, x):
        mu, lv = self.stats(self.enc(x).flatten(1)).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (lv / 2).exp()
        return self.dec(self.grow(z).view(-1, 64, 4, 4)), mu, lv


def shapes(n):
    g = torch.linspace(-1, 1, 32)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    c = torch.rand(n, 2, 1, 1) - 0.5
    r = torch.rand(n, 1, 1) * 0.4 + 0.1
    return (((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2).sqrt() < r).float()[:, None]


def main():
    torch.manual_seed(0)
    data = shapes(4096)
    model = ConvVAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = Watcher(limit=30)
    watcher.start()
    for step in range(90):
        x = data[torch.randint(0, len(data), (64,))]
        rec, mu, lv = model(x)
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
        loss = F.binary_cross_entropy_with_logits(rec, x, reduction="sum") / len(x) + kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        watcher.beat = time.time()
        if step % 20 == 0:
            print(f"{step} {loss.item():.2f}")
    watcher.done = True


if __name__ == "__main__":
    main()
