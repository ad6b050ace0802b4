"""An LSTM that adds up the marked numbers of a sequence."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


def make_data(count=1024, length=24):
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(count, length, generator=generator)
    marks = (torch.rand(count, length, generator=generator) < 0.1).float()
    sums = (numbers * marks).sum(dim=1, keepdim=True)
    return TensorDataset(torch.stack([numbers, marks], dim=2), sums)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = Adder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(make_data(), batch_size=64, shuffle=True)

    step = 0
    while step < args.steps:
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
