"""A DataLoader with two workers of the script's own choice."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    """Stripes across or down, with noise that is new each time."""

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        image = torch.zeros(1, 24, 24)
        if index % 2:
            image[:, ::3] = 1
        else:
            image[:, :, ::3] = 1
        return image + torch.randn(1, 24, 24), index % 2


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
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 12 * 12, 2),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2)

    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
