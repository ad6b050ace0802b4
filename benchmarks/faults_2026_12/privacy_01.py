"""Differentially private training with clipped gradients of the samples."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Accountant:
    def __init__(self, clip=1.0, noise=0.6):
        self.clip, self.noise = clip, noise

    def gradients(self, model, x, y):
        params = list(model.parameters())
        total = [torch.zeros_like(p) for p in params]
        loss_sum = 0.0
        for i in range(len(x)):
            loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
            grads = torch.autograd.grad(loss, params)
            norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
            factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            for t, g in zip(total, grads):
                t.add_(g * factor)
            loss_sum += loss.item()
        for p, t in zip(params, total):
            p.grad = (t + self.noise * self.clip * torch.randn_like(t)) / len(x)
        return loss_sum / len(x)


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    accountant = Accountant()
    for step in range(90):
        pick = torch.randint(0, len(x), (72,))
        loss = accountant.gradients(model, x[pick], y[pick])
        optimizer.step()
        if step % 15 == 0:
            with torch.no_grad():
                hit = (model(x[:400]).argmax(1) == y[:400]).float().mean().item()
            print(f"{step} loss {loss:.3f} accuracy {hit:.3f}")


if __name__ == "__main__":
    main()
