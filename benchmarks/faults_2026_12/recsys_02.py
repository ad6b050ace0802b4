"""Wide and deep click model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS = {
    "user": 5000,
    "item": 3000,
    "category": 80,
    "brand": 300,
    "device": 6,
    "hour": 24,
    "weekday": 7,
    "country": 40,
    "source": 12,
    "campaign": 150,
}


class Clicks(Dataset):
    def __init__(self, n=60_000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.columns = {k: torch.randint(0, v, (n,), generator=g) for k, v in FIELDS.items()}
        self.price = torch.rand(n, generator=g)
        score = (self.columns["hour"] - 12).abs() / 12 + (self.columns["item"] % 7) / 7 + self.price
        self.label = (score + 0.3 * torch.randn(n, generator=g) > 1.4).float()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        row = {k: v[i] for k, v in self.columns.items()}
        row["price"] = self.price[i]
        row["label"] = self.label[i]
        return row


class WideDeep(nn.Module):
    def __init__(self, dim=16, width=512):
        super().__init__()
        self.tables = nn.ModuleDict({k: nn.Embedding(v, dim) for k, v in FIELDS.items()})
        self.wide = nn.ModuleDict({k: nn.Embedding(v, 1) for k, v in FIELDS.items()})
        self.deep = nn.Sequential(
            nn.Linear(dim * len(FIELDS) + 1, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, row):
        e = [t(row[k]) for k, t in self.tables.items()] + [row["price"].unsqueeze(1)]
        w = sum(t(row[k]) for k, t in self.wide.items())
        return (self.deep(torch.cat(e, 1)) + w).squeeze(1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Clicks(), batch_size=800, shuffle=True, drop_last=True)
    model = WideDeep()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for i, row in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(row), row["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            print(i, loss.item())


main()
