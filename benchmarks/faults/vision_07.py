import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile


class Bottleneck(nn.Module):
    def __init__(self, c, r=2):
        super().__init__()
        m = c // r
        self.net = nn.Sequential(
            nn.Conv2d(c, m, 1, bias=False),
            nn.BatchNorm2d(m),
            nn.ReLU(),
            nn.Conv2d(m, m, 3, padding=1, bias=False),
            nn.BatchNorm2d(m),
            nn.ReLU(),
            nn.Conv2d(m, c, 1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return F.relu(x + self.net(x))


def resnet(c=48, blocks=8):
    return nn.Sequential(
        nn.Conv2d(3, c, 3, 2, 1),
        nn.ReLU(),
        *[Bottleneck(c) for _ in range(blocks)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(c, 8),
    )


def stripes(n):
    angle = torch.randint(0, 8, (n,))
    g = torch.linspace(-1, 1, 24)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    a = angle.float()[:, None, None] * torch.pi / 8
    img = torch.sin(8 * (xx * a.cos() + yy * a.sin()) + torch.rand(n, 1, 1) * 6)
    return img[:, None] + 0.3 * torch.randn(n, 3, 24, 24), angle


def train(steps, x, y, net, opt, tracer):
    with tracer:
        for step in range(steps):
            i = torch.randint(0, len(x), (24,))
            loss = F.cross_entropy(net(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print("step", step, "loss", loss.item(), file=sys.stderr)
    return tracer


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = stripes(1500)
    net = resnet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    tracer = profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, profile_memory=True
    )
    train(80, x, y, net, opt, tracer)
