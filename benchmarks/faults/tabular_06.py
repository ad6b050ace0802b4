import argparse

import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Wine(Dataset):
    def __init__(self, copies=8, noise=0.1):
        x, y = load_wine(return_X_y=True)
        x = torch.tensor(scale(x), dtype=torch.float32).repeat(copies, 1)
        self.x = x + noise * torch.randn_like(x)
        self.y = torch.tensor(y).repeat(copies)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Attn(nn.Module):
    """FT-transformer: one token a feature."""

    def __init__(self, features, dim=48, classes=3):
        super().__init__()
        self.w = nn.Parameter(torch.randn(features, dim) * 0.1)
        self.b = nn.Parameter(torch.zeros(features, dim))
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        t = x[..., None] * self.w + self.b
        t = torch.cat([self.cls.expand(len(x), -1, -1), t], 1)
        return self.head(self.enc(t)[:, 0])


def main(args):
    torch.manual_seed(args.seed)
    ds = Wine()
    loader = DataLoader(ds, batch_size=args.bs, shuffle=True, num_workers=2)
    model = Attn(ds.x.shape[1])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        losses = []
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        if epoch % 3 == 0:
            print("epoch", epoch, "loss", sum(losses) / len(losses))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=14)
    p.add_argument("--bs", type=int, default=256)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
