"""A schedule of the learning rate, gradient clipping, and an average of the weights."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-seed", action="store_true")
    args = parser.parse_args()
    if not args.no_seed:
        torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 64, generator=generator)
    targets = torch.sin(inputs @ torch.randn(64, 4, generator=generator) / 4)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4)
    ).to(device)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)

    step = 0
    while step < args.steps:
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.05)
            step += 1
            print("step", step, "loss", repr(loss.item()))
            if step == args.steps:
                break
    print("average", repr(sum(mean.square().sum().item() for mean in average)))


if __name__ == "__main__":
    main()
