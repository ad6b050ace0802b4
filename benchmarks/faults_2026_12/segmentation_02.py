import argparse
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("segment")


class Stage(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1),
            nn.GroupNorm(4, b),
            nn.SiLU(),
            nn.Conv2d(b, b, 3, padding=1),
            nn.SiLU(),
        )


class UNet(nn.Module):
    def __init__(self, classes, c=12):
        super().__init__()
        self.s1, self.s2, self.s3 = Stage(1, c), Stage(c, 2 * c), Stage(3 * c, c)
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        a = self.s1(x)
        b = self.s2(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.head(self.s3(torch.cat([a, b], 1)))


def dice(logits, target, classes):
    p = logits.softmax(1)
    t = F.one_hot(target, classes).movedim(-1, 1)
    top = 2 * (p * t).sum((0, 2, 3)) + 1
    return 1 - (top / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1)).mean()


def cells(n, size):
    """Discs and their rims on noise: background 0, inside 1, rim 2."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    c = torch.randint(size // 4, 3 * size // 4, (n, 2, 1, 1))
    r = torch.randint(4, size // 3, (n, 1, 1))
    d = ((y - c[:, 0]).square() + (x - c[:, 1]).square()).float().sqrt()
    mask = (d < r).long() + ((d - r).abs() < 1.5).long().mul(2)
    mask = mask.clamp(max=2)
    return (mask.float() / 2 + 0.3 * torch.randn(n, size, size)).unsqueeze(1), mask


def iou(confusion):
    inter = confusion.diag()
    return (inter / (confusion.sum(0) + confusion.sum(1) - inter).clamp(min=1)).mean().item()


@torch.no_grad()
def evaluate(model, images, masks, classes):
    model.eval()
    guess = torch.cat([model(part).argmax(1) for part in images.split(64)])
    model.train()
    pair = masks.flatten() * classes + guess.flatten()
    return iou(torch.bincount(pair, minlength=classes**2).view(classes, classes).float())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--size", type=int, default=32)
    args = p.parse_args()
    torch.manual_seed(0)
    x, y = cells(900, args.size)
    v, w = cells(128, args.size)
    model = UNet(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        for step, pick in enumerate(torch.randperm(len(x)).split(args.batch)):
            logits = model(x[pick])
            loss = F.cross_entropy(logits, y[pick]) + 0.5 * dice(logits, y[pick], 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
        log.info("epoch %d IoU %.3f", epoch, evaluate(model, v, w, 3))


if __name__ == "__main__":
    main()
