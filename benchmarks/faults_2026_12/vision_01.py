"""Digits classifier with a pretty console."""

import io

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn


class ConsoleReport:
    def __init__(self, width=120):
        self.width = width
        self.last = ""

    def update(self, step, target, logits):
        buffer = io.StringIO()
        console = Console(file=buffer, width=self.width)
        table = Table(title=f"step {step}")
        for column in ("sample", "target", "guess", "margin"):
            table.add_column(column)
        top = logits.topk(2, dim=1)
        margins = (top.values[:, 0] - top.values[:, 1]).tolist()
        guesses = top.indices[:, 0].tolist()
        for i, (t, g, m) in enumerate(zip(target.tolist(), guesses, margins)):
            table.add_row(str(i), str(t), str(g), f"{m:.3f}")
        console.print(table)
        self.last = buffer.getvalue()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(64 * 8 * 8, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    report = ConsoleReport()
    step = 0
    for epoch in range(9):
        order = torch.randperm(len(images))
        for start in range(0, len(order) - 95, 96):
            pick = order[start : start + 96]
            logits = model(images[pick])
            loss = nn.functional.cross_entropy(logits, labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report.update(step, labels[pick], logits.detach())
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(report.last[:400])


if __name__ == "__main__":
    main()
