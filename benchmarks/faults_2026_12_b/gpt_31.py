"""Small decoder-only language model on bytes, fed by a background thread."""
import argparse
import glob
import math
import os
import queue
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corpus:
    def __init__(self, n_files):
        files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:n_files]
        self.data = np.concatenate([np.fromfile(f, dtype=np.uint8) for f in files])

    def batch(self, rng, size, span):
        starts = rng.integers(0, len(self.data) - span - 1, size)
        rows = self.data[starts[:, None] + np.arange(span + 1)]
        block = torch.from_numpy(rows.astype(np.int64))
        return block[:, :-1], block[:, 1:]


class Feeder:
    """Prepares batches ahead of the training loop."""

    def __init__(self, corpus, size, span, depth=2, seed=0):
        self.corpus, self.size, self.span = corpus, size, span
        self.rng = np.random.default_rng(seed)
        self.ready = queue.Queue(maxsize=depth)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        while not self.stopped.is_set():
            if self.ready.full():
                time.sleep(0.2)
                continue
            self.ready.put(self.corpus.batch(self.rng, self.size, self.span))

    def __iter__(self):
        return self

    def __next__(self):
        return self.ready.get()

    def close(self):
        self.stopped.set()
        self.thread.join()


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, dim, layers, heads, span):
        super().__init__()
        self.tok = nn.Embedding(256, dim)
        self.pos = nn.Embedding(span, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 256, bias=False)
        self.head.weight = self.tok.weight
        self.register_buffer("index", torch.arange(span), persistent=False)
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(self.index[:ids.size(1)])
        return self.head(self.norm(self.blocks(x)))


def learning_rate(step, args):
    if step < args.warmup:
        return (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--span", type=int, default=64)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--steps", type=int, default=220)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    torch.manual_seed(1)
    feeder = Feeder(Corpus(80), args.batch, args.span, seed=1)
    model = GPT(args.dim, args.layers, args.heads, args.span)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: learning_rate(s, args))
    began = time.time()
    for step in range(1, args.steps + 1):
        x, y = next(feeder)
        loss = F.cross_entropy(model(x).view(-1, 256), y.reshape(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            rate = step * args.batch * args.span / (time.time() - began)
            print(f"step {step} loss {loss.item():.3f} {rate:.0f} bytes/s")
    feeder.close()


if __name__ == "__main__":
    main()
