import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).unbind(2)
        a = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.out(a.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.a, self.b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


class ByteModel(nn.Module):
    def __init__(self, dim, layers, heads, context):
        super().__init__()
        self.tok = nn.Embedding(256, dim)
        self.pos = nn.Embedding(context, dim)
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("places", torch.arange(context))

    def forward(self, ids):
        x = self.tok(ids) + self.pos(self.places[: ids.shape[1]])
        return F.linear(self.norm(self.layers(x)), self.tok.weight)


def rate(step, top, warm, total):
    if step < warm:
        return top * (step + 1) / warm
    return top * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


@torch.no_grad()
def validate(model, data, context, batches=4):
    model.eval()
    losses = []
    for k in range(batches):
        w = data[torch.arange(8)[:, None] * 50 + k * 500 + torch.arange(context + 1)]
        losses.append(F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten()))
    model.train()
    return torch.stack(losses).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--steps", type=int, default=200)
    args = p.parse_args()
    torch.manual_seed(0)
    data = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
    train, valid = data[:-5000], data[-5000:]
    model = ByteModel(args.dim, args.layers, 4, args.context)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3
    )
    offsets = torch.arange(args.context + 1)
    start = time.time()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, 1e-3, 20, args.steps)
        w = train[torch.randint(0, len(train) - args.context - 1, (args.batch, 1)) + offsets]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{step} loss {loss.item():.3f} {time.time() - start:.1f}s")
    print("validation", validate(model, valid, args.context))


if __name__ == "__main__":
    main()
