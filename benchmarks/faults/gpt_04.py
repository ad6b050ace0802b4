import inspect
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SOURCE = "\n".join(inspect.getsource(m) for m in (inspect, random, nn.Module))
ALPHABET = sorted(set(SOURCE))
DATA = torch.tensor([ALPHABET.index(c) for c in SOURCE])


class Head(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(dim, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(256, 256)).bool())

    def forward(self, x):
        t = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        wei = wei.masked_fill(~self.tril[:t, :t], float("-inf"))
        top = wei.max(-1, keepdim=True).values
        e = torch.exp(wei - top)
        wei = e / e.sum(-1, keepdim=True)
        return wei @ v


class MultiHead(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // heads) for _ in range(heads))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], -1))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.sa = MultiHead(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ff(self.ln2(x))


class BigramPlus(nn.Module):
    def __init__(self, dim=96, heads=12, depth=2, block=160):
        super().__init__()
        self.block = block
        self.tok, self.pos = nn.Embedding(len(ALPHABET), dim), nn.Embedding(block, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.lm = nn.Linear(dim, len(ALPHABET))
        self.register_buffer("where", torch.arange(block))

    def forward(self, idx, target):
        x = self.tok(idx) + self.pos(self.where[: idx.shape[1]])
        return F.cross_entropy(self.lm(self.blocks(x)).flatten(0, 1), target.flatten())


def get_batch(size, block):
    ix = torch.randint(len(DATA) - block, (size,))
    x = torch.stack([DATA[i : i + block] for i in ix])
    y = torch.stack([DATA[i + 1 : i + block + 1] for i in ix])
    return x, y


torch.manual_seed(1337)
model = BigramPlus()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(70):
    xb, yb = get_batch(6, model.block)
    loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 10 == 0:
        print(f"step {it}: train loss {loss.item():.4f}")
