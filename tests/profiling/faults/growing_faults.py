"""Small trainings on the CPU, sound as they are, with the faults that `--fault` names.

A recurrent network over sequences, and a distance field; both gather, scale and differentiate.

python growing_faults.py [--fault NAME[,NAME...]]
"""

import argparse

import torch
from torch import nn

ROWS, LENGTH, WIDTH, BATCH, STEPS = 40_000, 96, 64, 32, 160


class Recurrent(nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.faults = faults
        self.cell = nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        state, states = x.new_zeros(len(x), WIDTH), []
        if "slices" in self.faults:
            for at in range(x.shape[1]):  # fault: slices
                state = torch.tanh(self.cell(torch.cat([x[:, at], state], 1)))
                states.append(state)
        else:
            for part in x.unbind(1):
                state = torch.tanh(self.cell(torch.cat([part, state], 1)))
                states.append(state)
        return self.out(torch.stack(states, 1))


class Field(nn.Sequential):
    def __init__(self):
        layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        super().__init__(nn.Linear(2, WIDTH), *layers, nn.Linear(WIDTH, 1))


def scaled(x, table, faults):
    if "statistics" not in faults:
        return (x - 0.5) / 0.29
    return (x - table.mean(0)) / table.std(0)  # fault: statistics


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def sequences(faults):
    """Learns the mean of its input."""
    table = torch.rand(ROWS, WIDTH)
    lift, model = nn.Linear(WIDTH, WIDTH), Recurrent(faults)
    optimizer = torch.optim.SGD([*lift.parameters(), *model.parameters()], 0.01)
    for step in range(STEPS):
        x = scaled(table[torch.randint(0, ROWS, (BATCH * LENGTH,))], table, faults)
        x = x.unflatten(0, (BATCH, LENGTH))
        loss = (model(lift(x)) - x.mean(2, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(step, loss.item())


def field(faults):
    """A function whose gradient has the length one."""
    model = Field()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(2 * STEPS):
        x = torch.rand(256, 2, requires_grad=True)
        first = slope(model(x), x)
        if "derivatives" in faults:
            bend = slope(first[:, 0], x)[:, 0] + slope(first[:, 1], x)[:, 1]  # fault: derivatives
        loss = (first.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 80 == 0:
            print(step, loss.item())
            if "derivatives" in faults:
                print("bend", bend.abs().mean().item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="", type=lambda text: text.split(","))
    parser.add_argument("--field", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    (field if options.field else sequences)(options.fault)
