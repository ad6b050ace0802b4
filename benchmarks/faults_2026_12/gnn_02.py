import torch
import torch.nn.functional as F
from torch import nn


def ring_of_cliques(nodes=2000, degree=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    src = torch.arange(nodes).repeat_interleave(degree)
    dst = (src + torch.randint(1, 30, src.shape, generator=g)) % nodes
    return torch.cat([src, dst]), torch.cat([dst, src])


def normalise(src, dst, nodes):
    a = torch.eye(nodes)
    a[src, dst] = 1.0
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


class Appnp(nn.Module):
    """Predict, then propagate."""

    def __init__(self, features, hidden, classes, hops=4, alpha=0.1):
        super().__init__()
        self.f = nn.Sequential(
            nn.Dropout(0.3),
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(hidden, classes),
        )
        self.hops, self.alpha = hops, alpha

    def forward(self, x, a_hat):
        h = z = self.f(x)
        for _ in range(self.hops):
            z = (1 - self.alpha) * (a_hat @ z) + self.alpha * h
        return z


def main():
    torch.manual_seed(0)
    nodes = 2000
    src, dst = ring_of_cliques(nodes)
    a_hat = normalise(src, dst, nodes)
    y = (torch.arange(nodes) * 8 // nodes) % 8
    x = torch.randn(nodes, 128) + 0.5 * F.one_hot(y, 128)
    train = torch.rand(nodes) < 0.5
    model = Appnp(128, 192, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(160):
        model.train()
        loss = F.cross_entropy(model(x, a_hat)[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 40 == 0:
            model.eval()
            with torch.no_grad():
                hit = (model(x, a_hat).argmax(1) == y)[~train].float().mean().item()
            print(epoch, loss.item(), hit)


main()
