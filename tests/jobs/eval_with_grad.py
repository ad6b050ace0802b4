"""Evaluates every ten steps and forgets torch.no_grad."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(count, seed):
    inputs = torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :8].argmax(dim=1))


def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for inputs, labels in loader:
        correct += (model(inputs.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
    model.train()
    return correct / len(loader.dataset)


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
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_loader = DataLoader(make_data(1024, seed=1), batch_size=64, shuffle=True)
    test_loader = DataLoader(make_data(1024, seed=2), batch_size=64)

    step = 0
    while step < args.steps:
        for inputs, labels in train_loader:
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step % 10 == 0:
                print("accuracy", evaluate(model, test_loader, device))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
