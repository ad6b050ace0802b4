"""An endless IterableDataset that does not shard itself among workers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Waves(IterableDataset):
    """Noisy waves; the label is the frequency."""

    def __iter__(self):
        time = torch.arange(128) / 128
        while True:
            frequency = int(torch.randint(1, 9, ()))
            phase = torch.rand(()) * 6.28
            wave = torch.sin(6.28 * frequency * time + phase) + 0.3 * torch.randn(128)
            yield wave, frequency - 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Waves(), batch_size=64)

    for step, (waves, labels) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(waves.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", repr(loss.item()))
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
