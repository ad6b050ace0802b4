import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=12)
parser.add_argument("--batch_size", type=int, default=256)
parser.add_argument("--latent_dim", type=int, default=32)
parser.add_argument("--lr", type=float, default=2e-4)
opt = parser.parse_args()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()

        def block(i, o):
            return [nn.Linear(i, o), nn.BatchNorm1d(o), nn.LeakyReLU(0.2, inplace=True)]

        self.model = nn.Sequential(
            *block(opt.latent_dim, 256), *block(256, 512), nn.Linear(512, 64), nn.Sigmoid()
        )

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(64, 512),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(512, 512),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(512, 1),
        )

    def forward(self, x):
        return self.model(x)


torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
dataloader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images), batch_size=opt.batch_size, shuffle=True, drop_last=True
)
generator, discriminator = Generator(), Discriminator()
adversarial_loss = nn.BCEWithLogitsLoss()
optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(0.5, 0.999))
valid, fake = torch.ones(opt.batch_size, 1), torch.zeros(opt.batch_size, 1)
for epoch in range(opt.n_epochs):
    for i, (real,) in enumerate(dataloader):
        optimizer_G.zero_grad()
        gen = generator(torch.randn(opt.batch_size, opt.latent_dim))
        g_loss = adversarial_loss(discriminator(gen), valid)
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        d_loss = (
            adversarial_loss(discriminator(real), valid)
            + adversarial_loss(discriminator(gen.detach()), fake)
        ) / 2
        d_loss.backward()
        optimizer_D.step()
    print(f"[Epoch {epoch}/{opt.n_epochs}] [D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}]")
