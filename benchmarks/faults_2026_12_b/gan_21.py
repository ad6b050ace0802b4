"""DCGAN on procedurally drawn 32x32 textures."""
import math
import torch
from torch import nn


def textures(n, size=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    f = torch.rand(n, 1, 1, generator=g) * 6 + 2
    a = torch.rand(n, 1, 1, generator=g) * math.pi
    p = torch.rand(n, 1, 1, generator=g) * math.pi
    wave = torch.sin(f * (xx * torch.cos(a) + yy * torch.sin(a)) + p)
    return wave.unsqueeze(1)


class Generator(nn.Module):
    def __init__(self, z=64, w=32):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(
            nn.ConvTranspose2d(z, 4 * w, 4, 1, 0, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(True),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(True),
            nn.ConvTranspose2d(2 * w, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(True),
            nn.ConvTranspose2d(w, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(True),
            nn.Conv2d(w, 1, 3, 1, 1), nn.Tanh(),
        )

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, w, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Flatten(), nn.Linear(4 * w * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Trainer:
    def __init__(self, data, batch=32, lr=2e-4):
        self.data, self.batch = data, batch
        self.G, self.D = Generator(), Discriminator()
        for m in list(self.G.modules()) + list(self.D.modules()):
            if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(m.weight, 0.0, 0.02)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr, betas=(0.5, 0.999))
        self.bce = nn.BCEWithLogitsLoss()
        self.real = torch.full((batch,), 0.9)
        self.ones = torch.ones(batch)
        self.zeros = torch.zeros(batch)

    def batches(self):
        while True:
            order = torch.randperm(len(self.data))
            for i in range(0, len(order) - self.batch + 1, self.batch):
                yield self.data[order[i:i + self.batch]]

    def noise(self):
        return torch.randn(self.batch, self.G.z)

    def step_d(self, real):
        self.opt_d.zero_grad()
        fake = self.G(self.noise())
        loss = self.bce(self.D(real), self.real) + self.bce(self.D(fake), self.zeros)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def step_g(self):
        self.opt_g.zero_grad()
        self.D.requires_grad_(False)
        loss = self.bce(self.D(self.G(self.noise())), self.ones)
        loss.backward()
        self.D.requires_grad_(True)
        self.opt_g.step()
        return loss.detach()

    def fit(self, steps, every=40):
        stream = self.batches()
        for step in range(1, steps + 1):
            d = self.step_d(next(stream))
            g = self.step_g()
            if step % every == 0:
                print(f"{step:4d}  D {d.item():.3f}  G {g.item():.3f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(1)
    Trainer(textures(2048)).fit(steps=280)
