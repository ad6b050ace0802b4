import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Embedder(nn.Module):
    def __init__(self, out=64):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.fc = nn.Linear(64, out)

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x).mean((2, 3))), dim=1)


class TripletLoss(nn.Module):
    def __init__(self, margin=0.2):
        super().__init__()
        self.margin = margin

    def forward(self, z, labels):
        losses = []
        for i in range(z.size(0)):
            dist = (z - z[i]).pow(2).sum(1).add(1e-9).sqrt()
            same = labels == labels[i]
            pos = dist[same & (torch.arange(len(z)) != i)]
            neg = dist[~same]
            if len(pos) == 0 or len(neg) == 0:
                continue
            losses.append(F.relu(pos.max() - neg.min() + self.margin))
        return torch.stack(losses).mean()


def batches(images, labels, size):
    g = torch.Generator().manual_seed(3)
    while True:
        order = torch.randperm(len(images), generator=g)
        for chunk in order.split(size):
            if len(chunk) == size:
                yield images[chunk], labels[chunk]


def main(steps=90, size=96):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=16)
    labels = torch.tensor(digits.target)
    model = Embedder()
    criterion = TripletLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for step, (x, y) in enumerate(batches(images, labels, size)):
        if step == steps:
            break
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print("step", step, "triplet", round(loss.item(), 4))


main()
