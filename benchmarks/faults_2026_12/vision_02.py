import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Checks:
    """Stops at once when something goes wrong."""

    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def weights(self):
        for name, p in self.model.named_parameters():
            assert torch.isfinite(p).all(), f"{name} is not finite"
            assert p.abs().max() < 1e4, f"{name} explodes"

    def gradients(self):
        for name, p in self.model.named_parameters():
            assert torch.isfinite(p.grad).all(), f"gradient of {name} is not finite"
            assert p.grad.std(unbiased=False) < 1e4, f"gradient of {name} explodes"

    def moments(self):
        for state in self.optimizer.state.values():
            for value in state.values():
                if torch.is_tensor(value):
                    assert not torch.isnan(value).any()
                    assert not torch.isinf(value).any()


def block(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
    )


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = block(1, 64)
        self.layers = nn.ModuleList([block(64, 64) for _ in range(2)])
        self.down = block(64, 256)
        self.last = nn.ModuleList([block(256, 256) for _ in range(4)])
        self.fc = nn.Linear(256, 10)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 2)
        for layer in self.layers:
            x = x + layer(x)
        x = F.max_pool2d(self.down(x), 2)
        for layer in self.last:
            x = x + layer(x)
        return self.fc(x.mean((2, 3)))


def main(argv):
    steps = int(argv[0]) if argv else 110
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checks = Checks(model, optimizer)
    for step in range(steps):
        pick = torch.randint(0, len(x), (8,))
        checks.weights()
        loss = F.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        checks.gradients()
        optimizer.step()
        checks.moments()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main(sys.argv[1:])
