"""BYOL on digits with a linear probe after each epoch."""
import copy
import math

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F


class Views:
    """Batched random affine and contrast jitter."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.g) * 2 - 1

    def __call__(self, x):
        n = len(x)
        a, s = self.rand(n) * 0.35, 1 + 0.2 * self.rand(n)
        rot = torch.stack([a.cos() * s, -a.sin() * s, a.sin() * s, a.cos() * s], 1).view(n, 2, 2)
        theta = torch.cat([rot, 0.15 * self.rand(n, 2, 1)], 2)
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        return x * (1 + 0.3 * self.rand(n, 1, 1, 1)) + 0.1 * self.rand(n, 1, 1, 1)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class Backbone(nn.Sequential):
    def __init__(self, w=12):
        layers, c = [], 1
        for k, stride in ((w, 1), (2 * w, 2), (2 * w, 1), (4 * w, 2)):
            layers += [nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU()]
            c = k
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dim = c


class BYOL(nn.Module):
    def __init__(self, proj=64):
        super().__init__()
        self.backbone = Backbone()
        self.online = nn.Sequential(self.backbone, mlp(self.backbone.dim, 192, proj))
        self.predict = mlp(proj, 128, proj)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    @torch.no_grad()
    def move_target(self, tau):
        torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1 - tau)

    def forward(self, a, b):
        pa, pb = self.predict(self.online(a)), self.predict(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()


@torch.no_grad()
def probe(net, x, y, cut=1200):
    net.eval()
    feats = torch.cat([net(part) for part in x.split(256)]).numpy()
    net.train()
    clf = LogisticRegression(max_iter=60).fit(feats[:cut], y[:cut])
    return clf.score(feats[cut:], y[cut:])


def main():
    torch.manual_seed(8)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 16
    x = F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)
    view, net = Views(8), BYOL()
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4)
    batch, epochs = 64, 8
    per_epoch = len(x) // batch
    step, total = 0, epochs * per_epoch
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        for i in range(per_epoch):
            xb = x[order[i * batch:(i + 1) * batch]]
            loss = net(view(xb), view(xb))
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 5.0)
            opt.step()
            step += 1
            net.move_target(1 - 0.02 * (math.cos(math.pi * step / total) + 1) / 2)
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} probe {probe(net.backbone, x, d.target):.3f}")
        torch.save(net.backbone.state_dict(), "/tmp/byol_backbone.pt")


if __name__ == "__main__":
    main()
