"""Multi-gate mixture of experts: three tasks, three losses, top-2 routing, a balancing term."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        return self.net(x)


class TopKMoE(nn.Module):
    def __init__(self, dim, hidden, n_experts, k):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(n_experts)])
        self.k = k

    def forward(self, x):
        probs = F.softmax(self.gate(x), dim=-1)
        weight, chosen = probs.topk(self.k, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == e)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weight[rows, slot].unsqueeze(1))
        used = F.one_hot(chosen, len(self.experts)).float().sum(1).mean(0)
        balance = len(self.experts) * (used * probs.mean(0)).sum() / self.k
        return x + out, balance


class MultiTask(nn.Module):
    def __init__(self, n_in, dim=128, n_experts=8):
        super().__init__()
        self.stem = nn.Linear(n_in, dim)
        self.moe1 = TopKMoE(dim, 256, n_experts, 2)
        self.moe2 = TopKMoE(dim, 256, n_experts, 2)
        self.price = nn.Linear(dim, 1)
        self.kind = nn.Linear(dim, 5)
        self.sold = nn.Linear(dim, 1)

    def forward(self, x):
        h, b1 = self.moe1(F.relu(self.stem(x)))
        h, b2 = self.moe2(h)
        return self.price(h).squeeze(1), self.kind(h), self.sold(h).squeeze(1), b1 + b2


def make_tables(n=12000, n_in=32):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(n, n_in, generator=g)
    w = torch.randn(n_in, 8, generator=g) / n_in**0.5
    z = torch.sin(2 * x @ w)
    price = z[:, :3].sum(1) + 0.1 * torch.randn(n, generator=g)
    kind = z[:, 3:].argmax(1)
    sold = (z[:, 0] * z[:, 4] > 0).float()
    return TensorDataset(x, price, kind, sold)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(make_tables(), batch_size=256, shuffle=True)
    model = MultiTask(32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    step = 0
    while step < args.steps:
        total = 0.0
        for x, price, kind, sold in loader:
            pred_price, pred_kind, pred_sold, balance = model(x)
            loss_price = F.mse_loss(pred_price, price)
            loss_kind = F.cross_entropy(pred_kind, kind)
            loss_sold = F.binary_cross_entropy_with_logits(pred_sold, sold)
            loss = loss_price + loss_kind + 0.5 * loss_sold + 0.01 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step <= 100 or step % 10 == 0:
                print(
                    f"step {step} loss {loss.item():.8f} price {loss_price.item():.4f}"
                    f" kind {loss_kind.item():.4f} sold {loss_sold.item():.4f}"
                )
            if step >= args.steps:
                break
        scheduler.step(total)


if __name__ == "__main__":
    main()
