"""A small training on the CPU, sound as it is, with the work beside it that `--fault` names.

Sound are augmentation and loss, which take more of a step than the model does.

python beside_faults.py [--fault NAME]
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, STEPS = 256, 32, 400


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 512), nn.Linear(512, 512)
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        return self.head(F.gelu(self.second(F.gelu(self.first(x)))))


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)

    def update(self, model):
        fresh = copy.deepcopy(model)  # fault: average
        for new, old in zip(fresh.parameters(), self.model.parameters(), strict=True):
            new.data = 0.99 * old.data + 0.01 * new.data  # fault: average_too
        self.model = fresh


class Statistics:
    def __init__(self, model):
        self.table = {}
        for name, module in model.named_children():
            module.register_forward_hook(self.watching(name))

    def watching(self, name):
        def watch(module, inputs, output):
            values = output.detach().flatten()
            self.table[name] = values.sort().values[:: len(values) // 10].tolist()  # fault: hook

        return watch


def augment(x):
    """Shifted, mixed and disturbed."""
    mixed = 0.8 * x + 0.2 * x[torch.randperm(len(x))].sort(dim=1).values
    return mixed + 0.1 * torch.randn_like(x).cumsum(1).sort(dim=1).values


def contrast(output, y):
    """Of all pairs, with their ranks."""
    distances = torch.cdist(output.repeat(8, 1), output.repeat(8, 1))
    same = (y.repeat(8)[:, None] == y.repeat(8)[None]).float()
    ranks = distances.detach().argsort(dim=1).argsort(dim=1).float()
    return (distances * (same - 0.1) / (1 + ranks)).mean()


def train(fault):
    torch.manual_seed(0)
    data, labels = torch.randn(1024, WIDTH), torch.randint(10, (1024,))
    model = Model()
    averages = Average(model), Average(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=True)
    if fault == "hook":
        Statistics(model)
    for step in range(STEPS):
        index = torch.randint(1024, (BATCH,))
        x, y = augment(data[index]), labels[index]
        output = model(x)
        loss = F.cross_entropy(output, y) + contrast(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "average":
            for average in averages:
                average.update(model)
        if step % 100 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    train(parser.parse_args().fault)
