"""DGCNN-style classifier for synthetic point clouds (sphere, box, torus, cone, ...)."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def sphere(n, g):
    v = torch.randn(n, 3, generator=g)
    return v / v.norm(dim=1, keepdim=True)


def box(n, g):
    v = torch.rand(n, 3, generator=g) * 2 - 1
    axis = torch.randint(0, 3, (n,), generator=g)
    v[torch.arange(n), axis] = torch.sign(v[torch.arange(n), axis])
    return v


def torus(n, g):
    a, b = torch.rand(2, n, generator=g) * 6.2832
    r = 1 + 0.4 * torch.cos(b)
    return torch.stack([r * torch.cos(a), r * torch.sin(a), 0.4 * torch.sin(b)], 1)


def cone(n, g):
    h = torch.rand(n, generator=g).sqrt()
    a = torch.rand(n, generator=g) * 6.2832
    return torch.stack([h * torch.cos(a), h * torch.sin(a), 1 - 2 * h], 1)


def cylinder(n, g):
    a = torch.rand(n, generator=g) * 6.2832
    return torch.stack([torch.cos(a), torch.sin(a), torch.rand(n, generator=g) * 2 - 1], 1)


SHAPES = [sphere, box, torus, cone, cylinder]


def make_set(count, points, seed):
    g = torch.Generator().manual_seed(seed)
    clouds, labels = [], []
    for i in range(count):
        kind = i % len(SHAPES)
        c = SHAPES[kind](points, g) + 0.05 * torch.randn(points, 3, generator=g)
        q, _ = torch.linalg.qr(torch.randn(3, 3, generator=g))
        clouds.append(c @ q)
        labels.append(kind)
    return torch.stack(clouds), torch.tensor(labels)


def neighbours(x, k):
    dist = torch.cdist(x, x)
    order = torch.argsort(dist, dim=-1)
    return order[:, :, :k]


def edge_features(x, idx):
    b, n, c = x.shape
    k = idx.size(2)
    near = torch.gather(x, 1, idx.reshape(b, n * k, 1).expand(-1, -1, c)).view(b, n, k, c)
    centre = x.unsqueeze(2).expand_as(near)
    return torch.cat([centre, near - centre], dim=-1)


class EdgeConv(nn.Module):
    def __init__(self, d_in, d_out, k):
        super().__init__()
        self.k = k
        self.mlp = nn.Sequential(nn.Linear(2 * d_in, d_out), nn.LeakyReLU(0.2))

    def forward(self, x):
        with torch.no_grad():
            idx = neighbours(x, self.k)
        return self.mlp(edge_features(x, idx)).amax(dim=2)


class Classifier(nn.Module):
    def __init__(self, k, classes):
        super().__init__()
        self.e1 = EdgeConv(3, 24, k)
        self.e2 = EdgeConv(24, 48, k)
        self.head = nn.Sequential(nn.Linear(72, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, classes))

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(a)
        return self.head(torch.cat([a, b], dim=-1).amax(dim=1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--points", type=int, default=256)
    ap.add_argument("--k", type=int, default=8)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--steps", type=int, default=240)
    args = ap.parse_args()
    torch.manual_seed(8)
    train_x, train_y = make_set(1000, args.points, 1)
    test_x, test_y = make_set(100, args.points, 2)
    model = Classifier(args.k, len(SHAPES))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        pick = torch.randint(0, len(train_y), (args.batch,))
        loss = F.cross_entropy(model(train_x[pick]), train_y[pick], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        acc = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"test accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
