import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Backbone(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.layers(x).flatten(1)


class Transfer(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(96 * 16, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        features = self.backbone(x)
        return self.head(features)


def augment(x):
    dx, dy = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(x, (dx, dy), (2, 3)) + 0.05 * torch.randn_like(x)


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target) % 2
    model = Transfer(Backbone(), 2)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    for epoch in range(6):
        for pick in torch.randperm(len(x)).split(112):
            loss = F.cross_entropy(model(augment(x[pick])), y[pick])
            model.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


main()
