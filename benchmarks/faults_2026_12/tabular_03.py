import argparse
from functools import partial

import torch
from torch import nn


def load(rows, columns, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g) * (1 + torch.arange(columns)) + torch.arange(
        columns
    )
    y = (x / (1 + torch.arange(columns))).clamp(-2, 2).sum(1, keepdim=True) / columns
    return x, y


def scale(x, table):
    mean = table.mean(0)
    std = table.std(0)
    return (x - mean) / (std + 1e-6)


def draw(table, target, transform, size):
    pick = torch.randint(0, len(table), (size,))
    return transform(table[pick]), target[pick]


def network(columns, width, depth):
    layers = [nn.Linear(columns, width), nn.SELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.SELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def train(options):
    torch.manual_seed(options.seed)
    table, target = load(options.rows, 40)
    transform = partial(scale, table=table)
    net = network(40, options.width, options.depth)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(options.steps):
        x, y = draw(table, target, transform, options.batch)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"{step:5d} {loss.item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
