import collections
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ActivationStats:
    def __init__(self, model, kinds=(nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
        self.table = collections.defaultdict(list)
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                self.handles.append(module.register_forward_hook(self.make(name)))

    def make(self, name):
        def hook(module, inputs, output):
            o = output.detach()
            flat = o.flatten()[:60000]
            self.table[name].append(
                {
                    "mean": o.mean().item(),
                    "std": o.std().item(),
                    "dead": (o <= 0).float().mean().item(),
                    "p99": flat.quantile(0.99).item(),
                }
            )

        return hook

    def summary(self):
        return {k: round(v[-1]["std"], 3) for k, v in self.table.items()}


class CNN(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c)
        self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
        self.c3, self.b3 = nn.Conv2d(c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c)
        self.fc = nn.Linear(2 * c, 10)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        x = F.relu(self.b3(self.c3(F.max_pool2d(x, 2))))
        return self.fc(x.mean((2, 3)))


digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
y = torch.tensor(digits.target)
torch.manual_seed(0)
model = CNN()
stats = ActivationStats(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
step = 0
for epoch in range(6):
    for idx in torch.randperm(len(x)).split(128):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(epoch, step, f"{loss.item():.4f}", json.dumps(stats.summary()))
