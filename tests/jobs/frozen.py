"""Fine-tuning: a frozen trunk, a new head, and the optimizer has the head's parameters only."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x):
        return self.head(self.trunk(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images = torch.randn(512, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    labels = (images[:, 0, :12].mean(dim=(1, 2)) > 0).long()
    model = Network().to(device)
    for parameter in model.trunk.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

    step = 0
    while step < args.steps:
        for batch, target in loader:
            loss = nn.functional.cross_entropy(model(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
