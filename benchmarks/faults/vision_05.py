import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class PatchNet(nn.Module):
    def __init__(self, dim=64, depth=3):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, 2)
        self.pos = nn.Parameter(torch.zeros(1, 36, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        t = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.encoder(t + self.pos).mean(1))


def evaluate(model, x, y):
    model.eval()
    losses, hits = [], 0
    for xb, yb in zip(x.split(100), y.split(100)):
        out = model(xb)
        losses.append(F.cross_entropy(out, yb).item())
        hits += (out.argmax(1) == yb).sum().item()
    model.train()
    return sum(losses) / len(losses), hits / len(y)


def upscaled(size):
    d = load_digits()
    x = F.interpolate(torch.tensor(d.images).float()[:, None] / 16, size=size)
    return x, torch.tensor(d.target)


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = upscaled(12)
    x_val, y_val, x, y = x[:1540], y[:1540], x[1540:], y[1540:]
    model = PatchNet()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(13):
        for step, idx in enumerate(torch.randperm(len(x)).split(52)):
            loss = F.cross_entropy(model(x[idx] + 0.05 * torch.randn(len(idx), 1, 12, 12)), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        val_loss, val_acc = evaluate(model, x_val, y_val)
        print(f"epoch {epoch} train {loss.item():.3f} val {val_loss:.3f} acc {val_acc:.3f}")
