import argparse

import torch
from torch import nn
from torch.nn import functional as F


class BlurPool(nn.Module):
    def __init__(self, channels, stride=2):
        super().__init__()
        k = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0])
        k = k[:, None] * k[None]
        self.register_buffer("kernel", (k / k.sum())[None, None])
        self.channels, self.stride = channels, stride

    def forward(self, x):
        x = F.pad(x, (2, 2, 2, 2), mode="reflect")
        maps = []
        for c in range(self.channels):
            maps.append(F.conv2d(x[:, c : c + 1], self.kernel, stride=self.stride))
        return torch.cat(maps, dim=1)


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)
        self.bn = nn.BatchNorm2d(o)
        self.pool = BlurPool(o)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        return x, self.pool(x)


class Segmenter(nn.Module):
    def __init__(self, c=24, classes=4):
        super().__init__()
        self.s1, self.s2 = Stage(3, c), Stage(c, 2 * c)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 4, 4)
        self.out = nn.Conv2d(2 * c, classes, 1)

    def forward(self, x):
        a, x = self.s1(x)
        _, x = self.s2(x)
        x = self.up(F.relu(self.mid(x)))
        return self.out(torch.cat([a, x], 1))


def generate(n, size, classes):
    g = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, classes, (n, 1, size // 8, size // 8), generator=g).float()
    mask = F.interpolate(coarse, scale_factor=8).long().squeeze(1)
    palette = torch.rand(classes, 3, generator=g)
    img = palette[mask].permute(0, 3, 1, 2) + 0.2 * torch.randn(n, 3, size, size, generator=g)
    return img, mask


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--steps", type=int, default=80)
    args = ap.parse_args()
    torch.manual_seed(0)
    img, mask = generate(256, args.size, 4)
    net = Segmenter()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(args.steps):
        sel = torch.randint(0, len(img), (args.batch,))
        out = net(img[sel])
        loss = F.cross_entropy(out, mask[sel])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            iou = (out.argmax(1) == mask[sel]).float().mean()
            print(f"{step}: {loss.item():.3f} pixel accuracy {iou.item():.3f}")


if __name__ == "__main__":
    main()
