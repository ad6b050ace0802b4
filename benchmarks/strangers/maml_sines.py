"""MAML on sine waves: the inner loop updates a dict of parameters through functional_call."""

import argparse
import math
import random

import numpy as np
import torch
from torch import nn
from torch.func import functional_call


class Sines:
    """A task: one amplitude and one phase."""

    def __init__(self):
        self.amplitude = random.uniform(0.1, 5.0)
        self.phase = random.uniform(0, math.pi)

    def sample(self, n):
        x = torch.rand(n, 1) * 10 - 5
        return x, self.amplitude * torch.sin(x + self.phase)


def adapt(net, params, x, y, lr, inner_steps):
    for _ in range(inner_steps):
        loss = nn.functional.mse_loss(functional_call(net, params, (x,)), y)
        grads = torch.autograd.grad(loss, tuple(params.values()), create_graph=True)
        params = {name: p - lr * g for (name, p), g in zip(params.items(), grads, strict=True)}
    return params


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--inner-lr", type=float, default=0.01)
    parser.add_argument("--inner-steps", type=int, default=2)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    meta_optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    smooth = None
    for it in range(1, args.steps + 1):
        meta_optimizer.zero_grad()
        meta_loss = 0.0
        for _ in range(args.tasks):
            task = Sines()
            x_support, y_support = task.sample(args.shots)
            x_query, y_query = task.sample(args.shots)
            fast = adapt(
                net,
                dict(net.named_parameters()),
                x_support,
                y_support,
                args.inner_lr,
                args.inner_steps,
            )
            query_loss = nn.functional.mse_loss(functional_call(net, fast, (x_query,)), y_query)
            meta_loss += query_loss / args.tasks
        meta_loss.backward()
        meta_optimizer.step()
        value = meta_loss.item()
        smooth = value if smooth is None else 0.99 * smooth + 0.01 * value
        if it <= 100 or it % 10 == 0:
            print(f"step {it} loss {value:.8f} smooth {smooth:.4f}")


if __name__ == "__main__":
    main()
