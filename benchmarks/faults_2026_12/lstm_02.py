import torch
import torch.nn.functional as F
from torch import nn


class ClockCell(nn.Module):
    """A leaky recurrent cell, its update rate depends on the unit."""

    def __init__(self, n_in, n):
        super().__init__()
        self.inp = nn.Linear(n_in, n)
        self.rec = nn.Linear(n, n, bias=False)
        self.register_buffer("rate", torch.logspace(-2, 0, n))

    def forward(self, x, h):
        return h + self.rate * (torch.tanh(x + self.rec(h)) - h)


class ClockNet(nn.Module):
    def __init__(self, n_in=8, n=96, n_out=4):
        super().__init__()
        self.cell = ClockCell(n_in, n)
        self.out = nn.Linear(n, n_out)
        self.n = n

    def forward(self, x):
        drive = self.cell.inp(x)
        h = x.new_zeros(len(x), self.n)
        states = x.new_zeros(len(x), 0, self.n)
        for t in range(x.shape[1]):
            h = self.cell(drive[:, t], h)
            states = torch.cat([states, h.unsqueeze(1)], dim=1)
        return self.out(states)


def echo(batch, length, delay=10):
    x = torch.randn(batch, length, 8)
    y = torch.roll(x[:, :, :4], delay, 1)
    y[:, :delay] = 0
    return x, y


def main():
    torch.manual_seed(0)
    net = ClockNet()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for step in range(110):
        x, y = echo(64, 192)
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 22 == 0:
            print(step, loss.item())


main()
