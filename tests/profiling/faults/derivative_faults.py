"""Two small networks against each other, sound as they are, with the needless derivatives and calls
that `--fault` names.

python derivative_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

Z, WIDTH, BATCH, STEPS = 64, 256, 256, 160


def network(first, last):
    return nn.Sequential(
        nn.Linear(first, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, last),
    )


class Game:
    def __init__(self, faults):
        self.faults = faults
        self.g, self.d = network(Z, Z), network(Z, 1)
        self.opt_g = torch.optim.Adam(self.g.parameters(), 1e-4, fused=True)
        self.opt_d = torch.optim.Adam(self.d.parameters(), 1e-4, fused=True)
        self.norms, self.sure = [], []

    def sharpened(self, real):
        """Real samples, moved to where the critic is less sure."""
        real = real.requires_grad_()
        score = self.d(real).sum()
        (slope,) = torch.autograd.grad(score, real)
        return (real - 0.01 * slope.sign()).detach()

    def critic_step(self, real):
        real = self.sharpened(real)
        fake = self.g(torch.randn(BATCH, Z))  # fault: discarded
        if "discarded" not in self.faults:
            fake = fake.detach()
        score = self.d(real)
        loss = F.softplus(self.d(fake)).mean() + F.softplus(-score).mean()
        if "again" in self.faults:
            score = self.d(real)  # fault: again
        self.sure.append((score > 0).float().mean().item())
        if "twice" in self.faults:
            weights = list(self.d.parameters())
            grads = torch.autograd.grad(loss, weights, retain_graph=True)  # fault: twice
            self.norms.append(torch.stack([grad.norm() for grad in grads]).norm().item())
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()

    def generator_step(self):
        self.opt_g.zero_grad()
        self.d.requires_grad_(False)
        F.softplus(-self.d(self.g(torch.randn(BATCH, Z)))).mean().backward()
        self.d.requires_grad_(True)
        self.opt_g.step()


def train(faults):
    torch.manual_seed(0)
    game = Game(faults)
    for _ in range(STEPS):
        game.critic_step(torch.randn(BATCH, Z).tanh())
        game.generator_step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    train(parser.parse_args().fault)
