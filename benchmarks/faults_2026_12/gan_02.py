import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Generator(nn.Module):
    def __init__(self, latent=24, c=48):
        super().__init__()
        self.c = c
        self.inp = nn.Linear(latent, c * 4)
        self.net = nn.Sequential(
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.ConvTranspose2d(c, c, 4, stride=2, padding=1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 1, 4, stride=2, padding=1),
        )

    def forward(self, z):
        return self.net(self.inp(z).view(-1, self.c, 2, 2)).sigmoid()


def critic(c=48):
    sn = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(
        sn(nn.Conv2d(1, c, 3, padding=1)),
        nn.LeakyReLU(0.2),
        sn(nn.Conv2d(c, c, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        sn(nn.Linear(c * 16, 1)),
    )


class Gan:
    def __init__(self, latent=24):
        self.latent = latent
        self.g, self.d = Generator(latent), critic()
        self.g_opt = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.9))
        self.d_opt = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.9))

    def step(self, real):
        fake = self.g(torch.randn(len(real), self.latent))
        self.d.requires_grad_(True)
        d_loss = F.relu(1 - self.d(real)).mean() + F.relu(1 + self.d(fake.detach())).mean()
        self.d_opt.zero_grad()
        d_loss.backward()
        self.d_opt.step()
        self.d.requires_grad_(False)
        g_loss = -self.d(fake).mean()
        self.g_opt.zero_grad()
        g_loss.backward()
        self.g_opt.step()
        return d_loss.detach(), g_loss.detach()


def main():
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    gan = Gan()
    for epoch in range(5):
        for pick in torch.randperm(len(images)).split(72)[:-1]:
            d_loss, g_loss = gan.step(images[pick])
        print(f"epoch {epoch} critic {d_loss.item():.3f} generator {g_loss.item():.3f}")


if __name__ == "__main__":
    main()
