import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Layer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.fc = nn.Linear(i, o)
        self.norm = nn.LayerNorm(o)

    def forward(self, x):
        return F.silu(self.norm(self.fc(x)))


class VAE(nn.Module):
    def __init__(self, d=64, h=96, z=16, depth=40):
        super().__init__()
        self.encoder = nn.Sequential(Layer(d, h), *[Layer(h, h) for _ in range(depth)])
        self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)
        self.decoder = nn.Sequential(
            Layer(z, h), *[Layer(h, h) for _ in range(depth)], nn.Linear(h, d)
        )

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo(x, rec, mu, logvar):
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return F.mse_loss(rec, x, reduction="none").sum(1).mean() + 0.05 * kl


def update_average(target, source, decay=0.99):
    new_state = {}
    src = source.state_dict()
    for key, value in target.state_dict().items():
        new_state[key] = decay * value.clone() + (1 - decay) * src[key].detach().clone()
    target.load_state_dict(new_state)


digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16
model, average = VAE(), VAE()
average.load_state_dict(model.state_dict())
for p in average.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

step = 0
for epoch in range(6):
    for idx in torch.randperm(len(digits)).split(96):
        x = digits[idx]
        loss = elbo(x, *model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average(average, model)
        step += 1
    print("epoch", epoch, "elbo", loss.item())
