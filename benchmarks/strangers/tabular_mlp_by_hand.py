"""tabular_mlp.py, by hand: batches cut whole from the table, fused Adam, one thread."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

BATCH = 64


def load_data():
    x, y = make_classification(
        n_samples=20000,
        n_features=24,
        n_informative=16,
        n_classes=4,
        n_clusters_per_class=3,
        flip_y=0.03,
        random_state=7,
    )
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=7)
    scaler = StandardScaler()
    x_train = torch.tensor(scaler.fit_transform(x_train), dtype=torch.float32)
    x_test = torch.tensor(scaler.transform(x_test), dtype=torch.float32)
    return x_train, torch.tensor(y_train), x_test, torch.tensor(y_test)


def build_model():
    return nn.Sequential(
        nn.Linear(24, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 4),
    )


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def accuracy(model, x, y):
    model.eval()
    with torch.inference_mode():
        correct = (model(x).argmax(dim=1) == y).float().mean().item()
    model.train()
    return correct


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.set_num_threads(1)  # matrices this small are slower on two
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    x_train, y_train, x_test, y_test = load_data()
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)

    step = 0
    epoch = 0
    while step < args.steps:
        epoch += 1
        order = shuffled(len(x_train))
        # One gather per epoch; the batches are views.
        xs, ys = x_train[order].split(BATCH), y_train[order].split(BATCH)
        for x, y in zip(xs, ys, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step <= 100 or step % 20 == 0:
                print(f"step {step} loss {loss.item():.7g}")
            if step >= args.steps:
                break
        if epoch % 10 == 0:
            print(f"epoch {epoch}: test accuracy {accuracy(model, x_test, y_test):.4f}")
    print(f"final test accuracy: {accuracy(model, x_test, y_test):.4f}")


if __name__ == "__main__":
    main()
