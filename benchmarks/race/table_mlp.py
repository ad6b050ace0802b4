"""Predict a class from a row of a table; the table lies on the device."""

import argparse

import torch
import torch.nn as nn


def build_model(features, width, depth, classes):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)]
        features = width
    return nn.Sequential(*layers, nn.Linear(width, classes))


def sizes(small):
    """(rows, features, width, depth, batch)"""
    return (2048, 16, 32, 3, 64) if small else (262_144, 64, 256, 6, 512)


def make_table(rows, features):
    x = torch.randn(rows, features)
    score = x[:, ::2].sum(1) + x[:, 1::2].pow(2).sum(1) - features / 2
    return x, torch.bucketize(score, torch.tensor([-4.0, 0.0, 4.0]))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, features, width, depth, batch = sizes(args.small)
    x_train, y_train = (part.to(device) for part in make_table(rows, features))

    model = build_model(features, width, depth, 4).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    step = 0
    running = 0.0
    while step < args.steps:
        order = torch.randperm(rows, device=device)
        for i in range(0, rows, batch):
            xb, yb = x_train[order[i : i + batch]], y_train[order[i : i + batch]]
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            running += loss.item()
            step += 1
            if step <= 3 or step % 100 == 0:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
