import os
import subprocess

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def memory_mb():
    out = subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])
    return int(out) / 1024


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 48, 3, padding=1)
        self.conv3 = nn.Conv2d(48, 48, 3, padding=1)
        self.drop = nn.Dropout(0.25)
        self.fc1 = nn.Linear(48 * 16, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        x = self.drop(torch.flatten(x, 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, loader, optimizer, epoch, history):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        history.append((loss.item(), memory_mb()))
        if batch_idx % 5 == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}]\tLoss: {loss.item():.6f}"
            )


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += model(data).argmax(1).eq(target).sum().item()
    print(f"Test accuracy: {correct}/{len(loader.dataset)}\n")


def main():
    torch.manual_seed(1)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(d.target)
    train_loader = DataLoader(TensorDataset(x[:1536], y[:1536]), batch_size=128, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[1536:], y[1536:]), batch_size=261)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    history = []
    for epoch in range(1, 9):
        train(model, train_loader, optimizer, epoch, history)
        test(model, test_loader)


if __name__ == "__main__":
    main()
