import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.set_printoptions(profile="full", precision=3, linewidth=160)


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ELU())


class BetaVAE(nn.Module):
    def __init__(self, beta=2.0, z=10):
        super().__init__()
        self.beta = beta
        self.enc = nn.Sequential(block(64, 512), block(512, 512))
        self.to_mu, self.to_lv = nn.Linear(512, z), nn.Linear(512, z)
        self.dec = nn.Sequential(block(z, 512), block(512, 512), nn.Linear(512, 64), nn.Sigmoid())

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.to_mu(h), self.to_lv(h)
        z = mu + torch.exp(0.5 * lv) * torch.randn_like(lv)
        return self.dec(z), mu, lv

    def loss(self, x):
        r, mu, lv = self(x)
        rec = F.binary_cross_entropy(r, x, reduction="none").sum(1).mean()
        kl = (-0.5 * (1 + lv - mu.square() - lv.exp())).sum(1).mean()
        return rec + self.beta * kl, mu, lv


def main():
    torch.manual_seed(0)
    data = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    vae = BetaVAE()
    opt = torch.optim.Adamax(vae.parameters(), lr=2e-3)
    for step in range(90):
        x = data[torch.randint(0, len(data), (192,))]
        loss, mu, lv = vae.loss(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("step", step, "loss", loss.item())
        print("mu", mu)
        print("logvar", lv)


if __name__ == "__main__":
    main()
