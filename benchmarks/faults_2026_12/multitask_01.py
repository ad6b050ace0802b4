import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    """Rows in memory, fetched a whole batch at a time."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitems__(self, rows):
        return [c[rows] for c in self.columns]


def as_is(batch):
    return batch


class TwoHeads(nn.Module):
    def __init__(self, width=640):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(24, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.sign = nn.Linear(width, 2)
        self.size = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.sign(h), self.size(h).squeeze(1)


def toy(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    s = x[:, :12].sum(1) - x[:, 12:].prod(1)
    return x, (s > 0).long(), s


torch.manual_seed(0)
xa, sign, _ = toy(300_000, 0)
xb, _, size = toy(180_000, 1)
loader_a = DataLoader(Table(xa, sign), batch_size=224, shuffle=True, collate_fn=as_is)
loader_b = DataLoader(Table(xb, size), batch_size=224, shuffle=True, collate_fn=as_is)
model = TwoHeads()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    x1, y1 = next(iter(loader_a))
    x2, y2 = next(iter(loader_b))
    out1, _ = model(x1)
    _, out2 = model(x2)
    loss = F.cross_entropy(out1, y1) + 0.5 * F.mse_loss(out2, y2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")
