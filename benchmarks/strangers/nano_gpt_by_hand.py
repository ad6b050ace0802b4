"""
nano_gpt.py, by hand: the eight micro-batches are one batch (they fit, and the loss is a mean of
equal parts), bf16, SDPA, fused AdamW.
"""

import math
import random
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
# default config values
steps = 50
seed = 0
gradient_accumulation_steps = 8
batch_size = 4
block_size = 128
n_layer = 6
n_head = 5
n_embd = 320
dropout = 0.0
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 10
weight_decay = 1e-1
beta1, beta2 = 0.9, 0.95
grad_clip = 1.0
# -----------------------------------------------------------------------------
words = " ".join(sys.argv[1:]).replace("=", " ").split()
for key, value in zip(words[::2], words[1::2], strict=True):
    key = key.removeprefix("--")
    assert key in globals(), f"unknown setting {key}"
    globals()[key] = type(globals()[key])(value)

random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)

stdlib = Path(sysconfig.get_paths()["stdlib"])
raw = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:2_000_000]
data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def get_batch():
    # the micro-batches' numbers, drawn as the plain script draws them
    ix = torch.randint(len(data) - block_size, (gradient_accumulation_steps * batch_size,))
    window = data[ix[:, None] + torch.arange(block_size + 1)].long()
    return window[:, :-1], window[:, 1:]


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        k = k.view(b, t, n_head, c // n_head).transpose(1, 2)
        q = q.view(b, t, n_head, c // n_head).transpose(1, 2)
        v = v.view(b, t, n_head, c // n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, c)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(256, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, 256, bias=False)
        self.apply(self._init_weights)
        self.wte.weight = self.lm_head.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.reshape(-1))
        return logits, loss


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(beta1, beta2),
    fused=True,
)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / max(1, steps - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


t0 = time.time()
for iter_num in range(steps):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    X, Y = get_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, loss = model(X, Y)
    loss.backward()
    if grad_clip != 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    print(f"step {iter_num} loss {loss.item():.8f} time {(t1 - t0) * 1000:.2f}ms")
    t0 = t1
