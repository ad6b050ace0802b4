import argparse
import glob
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def bias(self, n):
        pos = torch.arange(n)
        distance = (pos[None, :] - pos[:, None]).float()
        slopes = torch.tensor([2 ** (-8 * (i + 1) / self.heads) for i in range(self.heads)])
        alibi = slopes[:, None, None] * distance
        decay = torch.exp(-slopes[:, None, None] * distance.abs()) * torch.cos(alibi)
        future = torch.triu(torch.ones(n, n), 1).bool()
        return (alibi + 0.1 * decay).masked_fill(future, float("-inf"))

    def forward(self, x):
        b, n, d = x.shape
        split = lambda t: t.view(b, n, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(n))
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.att = SelfAttention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab, dim=64, heads=8, depth=2):
        super().__init__()
        self.dim = dim
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.out = nn.Linear(dim, vocab)

    def positions(self, n):
        pe = torch.zeros(n, self.dim)
        t = torch.arange(n)[:, None]
        f = torch.exp(torch.arange(0, self.dim, 2) * (-math.log(10000.0) / self.dim))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(t * f), torch.cos(t * f)
        return pe

    def forward(self, ids):
        return self.out(self.layers(self.emb(ids) + self.positions(ids.shape[1])))


def corpus():
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:30]
    blob = b"".join(open(f, "rb").read() for f in files)
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8).long()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--context", type=int, default=384)
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    torch.manual_seed(0)
    data = corpus()
    model = LM(256)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        at = torch.randint(0, len(data) - args.context - 1, (1,))
        chunk = torch.stack([data[i : i + args.context + 1] for i in at])
        loss = F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
