"""char_attention.py, by hand: all heads in one matmul, cheap masks, bf16, fused AdamW."""

import argparse
import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=340)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

# hyperparameters
batch_size = 16
block_size = 128
n_embd = 192
n_head = 6
n_layer = 4
dropout = 0.1
learning_rate = 1e-3

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

stdlib = Path(sysconfig.get_paths()["stdlib"])
text = "".join((stdlib / f"{name}.py").read_text() for name in ("argparse", "ast", "typing"))
chars = sorted(set(text))
vocab_size = len(chars)
stoi = {ch: i for i, ch in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    window = data[ix[:, None] + torch.arange(block_size + 1)]
    return window[:, :-1], window[:, 1:]


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


class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.drop_weights = CheapDropout(dropout)
        self.dropout = CheapDropout(dropout)
        mask = torch.full((block_size, block_size), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, n_head, c // n_head).permute(2, 0, 3, 1, 4)
        # SDPA knows no flash kernel with dropout on the CPU: two batched matmuls are as good.
        wei = torch.matmul(q, k.transpose(-2, -1)) * (c // n_head) ** -0.5
        wei = self.drop_weights(
            F.softmax(wei + self.mask[:t, :t].to(wei.dtype), dim=-1).to(v.dtype)
        )
        return self.dropout(self.proj((wei @ v).transpose(1, 2).reshape(b, t, c)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = MultiHeadAttention()
        self.ffwd = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            CheapDropout(dropout),
        )
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        tok_emb = self.token_embedding_table(idx)
        pos_emb = self.position_embedding_table(torch.arange(idx.shape[1]))
        x = self.blocks(tok_emb + pos_emb)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, vocab_size).float(), targets.reshape(-1))
        return logits, loss


model = LanguageModel()
print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)

for step in range(1, args.steps + 1):
    xb, yb = get_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
