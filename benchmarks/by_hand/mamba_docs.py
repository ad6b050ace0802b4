"""Byte-level language model with Mamba-style selective state space blocks.

Corpus: the docstrings of the Python standard library.

    python train.py --steps 400
"""
import argparse
import importlib
import inspect
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MODULES = """argparse ast asyncio base64 bisect calendar cmath cmd codecs collections configparser
contextlib copy csv ctypes datetime decimal difflib dis doctest email enum fractions functools gettext
glob gzip hashlib heapq html http inspect io ipaddress itertools json locale logging mailbox math
mimetypes multiprocessing numbers operator optparse os pathlib pickle platform pprint queue random re
sched shelve shlex shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess
tarfile tempfile textwrap threading timeit tokenize traceback types typing unittest urllib uuid
warnings weakref xml zipfile""".split()


def build_corpus():
    seen, out = set(), []

    def add(doc):
        if isinstance(doc, str) and doc and doc not in seen:
            seen.add(doc)
            out.append(inspect.cleandoc(doc))

    for name in MODULES:
        mod = importlib.import_module(name)
        add(mod.__doc__)
        for _, obj in sorted(vars(mod).items()):
            if inspect.isclass(obj) or inspect.isroutine(obj):
                add(obj.__doc__)
            if inspect.isclass(obj):
                for _, m in sorted(vars(obj).items()):
                    if inspect.isroutine(m):
                        add(m.__doc__)
    text = "\n\n".join(out)
    return torch.tensor(np.frombuffer(text.encode("ascii", "ignore"), dtype=np.uint8).astype(np.int64))


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class MambaBlock(nn.Module):
    def __init__(self, d_model, d_state=8, d_conv=4, expand=2):
        super().__init__()
        self.d_inner = expand * d_model
        self.d_state = d_state
        self.dt_rank = math.ceil(d_model / 16)
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        A = torch.arange(1, d_state + 1).float().repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        dt = torch.exp(torch.rand(self.d_inner) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x):
        L = x.shape[1]
        x, z = self.in_proj(x).chunk(2, dim=-1)
        x = self.conv1d(x.transpose(1, 2))[:, :, :L].transpose(1, 2)
        x = F.silu(x)
        y = self.ssm(x)
        return self.out_proj(y * F.silu(z))

    def ssm(self, x):
        A = -torch.exp(self.A_log)
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        return self.selective_scan(x, dt, A, B, C) + x * self.D

    def selective_scan(self, u, dt, A, B, C):
        b, l, d = u.shape
        dA = torch.exp(dt.unsqueeze(-1) * A)
        dBu = dt.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1)
        h = torch.zeros(b, d, self.d_state)
        ys = []
        for t in range(l):
            h = dA[:, t] * h + dBu[:, t]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
        return torch.stack(ys, dim=1)


class MambaLM(nn.Module):
    def __init__(self, vocab, d_model, n_layer):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_model)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.ModuleList([MambaBlock(d_model) for _ in range(n_layer)])
        self.norms = nn.ModuleList([RMSNorm(d_model) for _ in range(n_layer)])
        self.norm_f = RMSNorm(d_model)

    def forward(self, idx):
        x = self.emb(idx)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        return self.norm_f(x) @ self.emb.weight.T


def get_batch(data, bs, L):
    ix = torch.randint(len(data) - L - 1, (bs,))
    x = torch.stack([data[i:i + L] for i in ix])
    y = torch.stack([data[i + 1:i + L + 1] for i in ix])
    return x, y


@torch.no_grad()
def evaluate(model, data, args):
    model.eval()
    losses = []
    for _ in range(8):
        x, y = get_batch(data, args.batch_size, args.seq_len)
        losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--seq_len", type=int, default=64)
    p.add_argument("--d_model", type=int, default=64)
    p.add_argument("--n_layer", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--log_every", type=int, default=20)
    p.add_argument("--seed", type=int, default=1337)
    args = p.parse_args()

    torch.manual_seed(args.seed)
    data = build_corpus()
    n = int(0.95 * len(data))
    train, val = data[:n], data[n:]
    model = MambaLM(128, args.d_model, args.n_layer)
    print(f"{len(data)} bytes, {sum(p.numel() for p in model.parameters())} parameters")

    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    lr_fn = lambda s: min((s + 1) / args.warmup, 0.5 * (1 + math.cos(math.pi * s / args.steps)) + 0.02)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_fn)
    t0 = time.time()
    for step in range(args.steps):
        x, y = get_batch(train, args.batch_size, args.seq_len)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f} {time.time() - t0:.1f}s", flush=True)
    print(f"val loss {evaluate(model, val, args):.4f}")


if __name__ == "__main__":
    main()
