# residual mlp on diabetes-like regression
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(7)
N_FEAT = 96
x_all = torch.randn(8192, N_FEAT)
w_true = torch.randn(N_FEAT, 1)
y_all = torch.sin(x_all @ w_true / 4) + 0.1 * torch.randn(8192, 1)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, d)
        self.fc2 = nn.Linear(d, d)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


net = nn.Sequential(nn.Linear(N_FEAT, 64), *[Block(64) for _ in range(48)], nn.Linear(64, 1))
optim = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)


def limit_grads(params, max_norm):
    total = 0.0
    largest = 0.0
    for p in params:
        if p.grad is None:
            continue
        if torch.isnan(p.grad).any().item():
            p.grad.zero_()
        largest = max(largest, p.grad.abs().max().item())
        n = p.grad.norm(2).item()
        total += n * n
    total = math.sqrt(total)
    scale = max_norm / (total + 1e-6)
    if scale < 1.0:
        for p in params:
            if p.grad is not None:
                p.grad.mul_(scale)
    return total, largest


params = list(net.parameters())
for step in range(100):
    idx = torch.randint(0, x_all.shape[0], (96,))
    pred = net(x_all[idx])
    loss = F.mse_loss(pred, y_all[idx])
    optim.zero_grad()
    loss.backward()
    gnorm, gmax = limit_grads(params, 1.0)
    optim.step()
    if step % 20 == 0:
        print(step, loss.item(), float(gnorm), float(gmax))
