import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Settings:
    layers: int = 4
    dim: int = 160
    heads: int = 5
    context: int = 64
    batch: int = 8
    steps: int = 120
    memory_saving: bool = True


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads
        self.norm1, self.norm2 = nn.RMSNorm(s.dim), nn.RMSNorm(s.dim)
        self.qkv = nn.Linear(s.dim, 3 * s.dim, bias=False)
        self.o = nn.Linear(s.dim, s.dim, bias=False)
        self.gate = nn.Linear(s.dim, 3 * s.dim, bias=False)
        self.up = nn.Linear(s.dim, 3 * s.dim, bias=False)
        self.down = nn.Linear(3 * s.dim, s.dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.emb = nn.Embedding(256, s.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(s.context, s.dim))
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.dim)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for layer in self.layers:
            if self.s.memory_saving:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.norm(x) @ self.emb.weight.T / math.sqrt(self.s.dim)


def main(s=Settings()):
    torch.manual_seed(0)
    data = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
    model = Llama(s)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(s.steps):
        at = torch.randint(0, len(data) - s.context - 1, (s.batch, 1)) + torch.arange(s.context + 1)
        w = data[at]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(step, f"{loss.item():.3f}")


main()
