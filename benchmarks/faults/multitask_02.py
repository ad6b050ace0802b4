import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Trunk(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.a = nn.Conv2d(1, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)
        self.c = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.a(x))
        x = F.relu(self.b(x)) + x
        x = F.relu(self.c(x)) + x
        return x.mean((2, 3))


class Heads(nn.ModuleDict):
    def __init__(self, c=48):
        super().__init__(
            {"digit": nn.Linear(c, 10), "parity": nn.Linear(c, 2), "ink": nn.Linear(c, 1)}
        )


def targets(d):
    y = torch.tensor(d.target)
    ink = torch.tensor(d.data).float().mean(1, keepdim=True) / 16
    return {"digit": y, "parity": y % 2, "ink": ink}


def main():
    torch.manual_seed(0)
    d = load_digits()
    x = torch.tensor(d.images).float()[:, None] / 16
    y = targets(d)
    trunk, heads = Trunk(), Heads()
    opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-3)
    losses = {"digit": F.cross_entropy, "parity": F.cross_entropy, "ink": F.mse_loss}
    for step in range(90):
        i = torch.randint(0, len(x), (128,))
        h = trunk(x[i])
        opt.zero_grad()
        values = {}
        for name, f in losses.items():
            values[name] = f(heads[name](h), y[name][i])
            values[name].backward(retain_graph=True)
        opt.step()
        if step % 30 == 0:
            print(step, {k: round(v.item(), 3) for k, v in values.items()})


if __name__ == "__main__":
    main()
