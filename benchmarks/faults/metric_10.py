import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


def supcon(z, y, temperature=0.1):
    sim = z @ z.T / temperature
    self_mask = torch.eye(len(z), dtype=torch.bool)
    sim = sim.masked_fill(self_mask, float("-inf"))
    logp = sim.log_softmax(1).masked_fill(self_mask, 0.0)
    same = (y[:, None] == y[None]) & ~self_mask
    return -((logp * same).sum(1) / same.sum(1).clamp(min=1)).mean()


def loop(model, x, y, optimizer, batch):
    def one_step():
        i = torch.randint(0, len(x), (batch,))
        images = x[i] + 0.1 * torch.randn_like(x[i])
        loss = supcon(F.normalize(model(images), dim=1), y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return one_step


d = load_digits()
x, y = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(d.target)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 48, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(48, 64, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(1024, 64),
)
step = loop(model, x, y, torch.optim.Adam(model.parameters(), lr=1e-3), 160)
for n in range(90):
    loss = step()
    if n % 30 == 0:
        print(n, loss.item())
