"""No `if __name__ == "__main__"`: all at the top level."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--no-seed", action="store_true")
args = parser.parse_args()
if not args.no_seed:
    torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"

generator = torch.Generator().manual_seed(1)
images = torch.randn(512, 1, 24, 24, generator=generator)
labels = (images[:, 0, 8:16, 8:16].mean(dim=(1, 2)) > 0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 12 * 12, 2),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

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
