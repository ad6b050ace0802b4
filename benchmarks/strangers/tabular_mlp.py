"""Predict the price class of a flat from a table of 24 numbers."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


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
    x_train = scaler.fit_transform(x_train)
    x_test = scaler.transform(x_test)
    train_set = TensorDataset(
        torch.tensor(x_train, dtype=torch.float32), torch.tensor(y_train, dtype=torch.long)
    )
    test_set = TensorDataset(
        torch.tensor(x_test, dtype=torch.float32), torch.tensor(y_test, dtype=torch.long)
    )
    return train_set, test_set


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


def accuracy(model, loader):
    model.eval()
    correct = 0
    total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(dim=1) == y).sum().item()
            total += len(y)
    model.train()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_set, test_set = load_data()
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=256)

    model = build_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    epoch = 0
    while step < args.steps:
        epoch += 1
        running = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            outputs = model(x)
            loss = criterion(outputs, y)
            loss.backward()
            optimizer.step()
            running += loss.item()
            step += 1
            if step <= 100 or step % 20 == 0:
                print(f"step {step} loss {loss.item():.7g}")
            if step >= args.steps:
                break
        if epoch % 10 == 0:
            print(f"epoch {epoch}: test accuracy {accuracy(model, test_loader):.4f}")
    print(f"final test accuracy: {accuracy(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
