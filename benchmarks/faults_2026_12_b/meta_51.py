"""Reptile on sinusoid regression tasks, with a functional inner loop."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class SineTasks:
    def __init__(self, seed, shots=64):
        self.gen = torch.Generator().manual_seed(seed)
        self.shots = shots

    def draw(self):
        amp = 0.1 + 4.9 * torch.rand(1, generator=self.gen)
        phase = math.pi * torch.rand(1, generator=self.gen)

        def batch(n):
            x = torch.rand(n, 1, generator=self.gen) * 10 - 5
            return x, amp * torch.sin(x + phase)

        return batch(self.shots), batch(self.shots)


def build(width=128):
    return nn.Sequential(
        nn.Linear(1, width), nn.LayerNorm(width), nn.Tanh(),
        nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(),
        nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(),
        nn.Linear(width, 1),
    )


def adapt(model, params, support, steps, lr):
    x, y = support
    for _ in range(steps):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {n: p - lr * g for (n, p), g in zip(params.items(), grads)}
    return params, loss


def evaluate(model, tasks, n, steps, lr):
    total = 0.0
    for _ in range(n):
        support, query = tasks.draw()
        fast, _ = adapt(model, dict(model.named_parameters()), support, steps, lr)
        with torch.no_grad():
            total += F.mse_loss(functional_call(model, fast, (query[0],)), query[1]).item()
    return total / n


def train(iterations=440, meta_batch=4, inner_steps=8, inner_lr=0.02, meta_lr=0.5):
    torch.manual_seed(0)
    model = build()
    tasks, held_out = SineTasks(1), SineTasks(2)
    opt = torch.optim.SGD(model.parameters(), lr=meta_lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 1 - k / iterations)
    for it in range(iterations):
        start = dict(model.named_parameters())
        shift = {n: torch.zeros_like(p) for n, p in start.items()}
        running = 0.0
        for _ in range(meta_batch):
            support, _ = tasks.draw()
            fast, loss = adapt(model, start, support, inner_steps, inner_lr)
            running += loss.item() / meta_batch
            with torch.no_grad():
                for n in shift:
                    shift[n] += (start[n] - fast[n]) / meta_batch
        for n, p in start.items():
            p.grad = shift[n]
        opt.step()
        sched.step()
        if it % 40 == 0:
            score = evaluate(model, held_out, 4, inner_steps, inner_lr)
            print(f"iteration {it:4d}  inner loss {running:.4f}  held-out {score:.4f}")
    print(f"final held-out {evaluate(model, held_out, 20, inner_steps, inner_lr):.4f}")


if __name__ == "__main__":
    train()
