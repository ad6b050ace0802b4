"""Differentially private SGD: per-sample gradients by torch.func.vmap(grad), clipped, noised."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, vmap


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lot", type=int, default=64)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=0.25)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    def sample_loss(params, image, label):
        logits = functional_call(model, params, (image.unsqueeze(0),))
        loss = F.cross_entropy(logits, label.unsqueeze(0))
        return loss, loss

    per_sample = vmap(grad(sample_loss, has_aux=True), in_dims=(None, 0, 0))

    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(images), (args.lot,))
        params = {name: p.detach() for name, p in model.named_parameters()}
        grads, losses = per_sample(params, images[idx], labels[idx])

        norms = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in grads.values()))
        factors = (args.clip / (norms + 1e-6)).clamp(max=1.0)
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            clipped = torch.einsum("n,n...->...", factors, grads[name])
            noise = args.sigma * args.clip * torch.randn_like(p)
            p.grad = (clipped + noise) / args.lot
        optimizer.step()

        if step <= 100 or step % 10 == 0:
            print(f"step {step} loss {losses.mean().item():.8f} norm {norms.mean().item():.3f}")


if __name__ == "__main__":
    main()
