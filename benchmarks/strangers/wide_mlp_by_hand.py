"""wide_mlp.py, by hand: bf16 autocast, one gather per batch, cheap masks, fused AdamW."""

import argparse
import random
import time

import numpy as np
import torch
import torch.nn as nn


class CheapDropout(nn.Module):
    """Dropout whose mask is one random byte per element instead of a float."""

    def __init__(self, p):
        super().__init__()
        self.cut = round(p * 256)

    def forward(self, x):
        if not self.training:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= self.cut
        return x * kept.to(x.dtype).mul_(256 / (256 - self.cut))


class WideNet(nn.Module):
    def __init__(self, n_features, n_classes, width=1536):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_features, width),
            nn.GELU(),
            nn.LayerNorm(width),
            CheapDropout(0.2),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            CheapDropout(0.2),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            CheapDropout(0.2),
            nn.Linear(width, n_classes),
        )

    def forward(self, x):
        return self.net(x)


def shuffled(n):
    """The order in which DataLoader(shuffle=True) would come, drawn as it draws it."""
    torch.empty((), dtype=torch.int64).random_()  # its base seed
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def synthetic(n, n_features, n_classes):
    gen = torch.Generator().manual_seed(5)
    centers = torch.randn(n_classes, 3, n_features, generator=gen) * 0.35
    y = torch.randint(n_classes, (n,), generator=gen)
    which = torch.randint(3, (n,), generator=gen)
    x = centers[y, which] + torch.randn(n, n_features, generator=gen)
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=105)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    x, y = synthetic(60000, 128, 10)
    model = WideNet(128, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    step = 0
    start = time.time()
    while step < args.steps:
        for index in shuffled(len(x)).split(args.batch_size)[:-1]:
            targets = y[index]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x[index])
            loss = criterion(logits.float(), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            acc = (logits.argmax(1) == targets).float().mean()
            print(f"step {step} loss {loss.item():.7f} acc {acc.item():.4f}")
            if step >= args.steps:
                break
    print(f"{step * args.batch_size / (time.time() - start):.0f} samples/s")


if __name__ == "__main__":
    main()
