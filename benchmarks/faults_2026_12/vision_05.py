"""Residual network on the digits of scikit-learn."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class Net(nn.Module):
    def __init__(self, c=40):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.blocks = nn.Sequential(Residual(c), Residual(c))
        self.fc = nn.Linear(c, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def shift(x):
    """Random translation by up to one pixel for the whole batch."""
    dy, dx = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(x, (dy, dx), (2, 3))


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    hit = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return hit


def main():
    torch.manual_seed(0)
    digits = load_digits()
    a, b, ya, yb = train_test_split(digits.images, digits.target, test_size=300, random_state=0)
    x = torch.tensor(a, dtype=torch.float32).unsqueeze(1) / 16
    v = torch.tensor(b, dtype=torch.float32).unsqueeze(1) / 16
    y, w = torch.tensor(ya), torch.tensor(yb)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    epochs, batch = 8, 96
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs * (len(x) // batch))
    for epoch in range(epochs):
        for pick in torch.randperm(len(x))[: len(x) // batch * batch].view(-1, batch):
            loss = F.cross_entropy(model(shift(x[pick])), y[pick], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch} loss {loss.item():.3f} accuracy {accuracy(model, v, w):.3f}")


if __name__ == "__main__":
    main()
