#!/usr/bin/env python
"""Pre-train a small BERT style encoder with masked language modelling.

Tuned for CPU: sentences of a batch are sorted by length and kept as one flat [tokens, d] buffer of a few groups, each padded
only to its own longest sentence (attention works on views of the groups); vocabulary logits only at masked positions;
bfloat16 autocast; dropout masks from raw random bits; fused AdamW; vectorised masking on the flat buffer; no accelerate, no .item() per step.
"""
import argparse
import itertools
import logging
import math
import random

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

logger = logging.getLogger(__name__)

PAD, CLS, SEP, MASK, UNK = range(5)
N_SPECIAL = 5


class SyntheticCorpus:
    """Sentences from a toy grammar: topics with their own words, and word pairs that follow each other."""

    def __init__(self, vocab_size, n_topics=20, seed=0):
        self.rng = random.Random(seed)
        words = list(range(N_SPECIAL, vocab_size))
        self.rng.shuffle(words)
        self.function_words = words[:60]
        content = words[60:]
        size = len(content) // n_topics
        self.topics = [content[i * size:(i + 1) * size] for i in range(n_topics)]
        self.cum_weights = list(itertools.accumulate(1.0 / (i + 3) for i in range(size)))
        self.follows = {w: self.rng.choice(self.function_words) for w in words}

    def sentence(self, max_len):
        n = int(min(max(self.rng.lognormvariate(3.6, 0.55), 6), max_len - 2))
        topic = self.rng.choice(self.topics)
        out = []
        while len(out) < n:
            w = self.rng.choices(topic, cum_weights=self.cum_weights)[0]
            out.append(w)
            if self.rng.random() < 0.6:
                out.append(self.follows[w])
        return out[:n]


class MLMBatches:
    """Flat batches: ids, positions, group shapes and key masks, masked positions and their labels"""

    def __init__(self, n_sentences, vocab_size, max_len, batch_size, group):
        corpus = SyntheticCorpus(vocab_size)
        sentences = [corpus.sentence(max_len) for _ in range(n_sentences)]
        self.lengths = np.array([len(s) + 2 for s in sentences])
        self.ids = np.full((n_sentences, max_len), PAD)
        for row, s in zip(self.ids, sentences):
            row[:len(s) + 2] = [CLS] + s + [SEP]
        self.vocab_size, self.batch_size, self.group = vocab_size, batch_size, group

    def __len__(self):
        return len(self.ids) // self.batch_size

    def __iter__(self):
        perm = torch.randperm(len(self.ids)).numpy()
        for i in range(len(self)):
            yield self.batch(perm[i * self.batch_size:(i + 1) * self.batch_size])

    def batch(self, rows, mlm_probability=0.15):
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        ids, pos, groups = [], [], []
        for i in range(0, len(rows), self.group):
            r = rows[i:i + self.group]
            length = self.lengths[r]
            n = length[-1]
            ids.append(self.ids[r, :n].ravel())
            pos.append(np.tile(np.arange(n), len(r)))
            mask = torch.from_numpy(np.where(np.arange(n) < length[:, None], 0, -1e4).astype(np.float32))[:, None, None, :]
            groups.append((len(r), int(n), None if length[0] == n else mask))
        ids = torch.from_numpy(np.concatenate(ids))
        pos = torch.from_numpy(np.concatenate(pos))

        where = ((torch.rand(ids.shape) < mlm_probability) & (ids >= N_SPECIAL)).nonzero().squeeze(1)
        labels = ids[where]
        u = torch.rand(where.shape)
        new = torch.where(u < 0.8, MASK, torch.where(u < 0.9, torch.randint(N_SPECIAL, self.vocab_size, where.shape), labels))
        ids[where] = new
        return ids, pos, groups, where, labels


class FastDropout:
    """Bernoulli noise from 16 random bits an element; torch's CPU bernoulli_ is serial, about 20 times slower"""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.SFC64(seed))

    def noise(self, shape, p, dtype=torch.float32):
        n = int(np.prod(shape))
        bits = self.rng.integers(0, 2 ** 64, (n + 3) // 4, dtype=np.uint64).view(np.int16)[:n]
        keep = torch.from_numpy(bits).view(shape) >= round(p * 65536) - 32768
        return keep.to(dtype).mul_(1 / (1 - p))

    def __call__(self, x, p, training=True):
        return x * self.noise(x.shape, p, x.dtype) if training and p > 0 else x


class BertLike(nn.Module):
    def __init__(self, vocab_size, d_model=128, nhead=4, num_layers=4, dim_feedforward=512, max_len=128, dropout=0.1):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.emb_norm = nn.LayerNorm(d_model)
        self.fast = FastDropout(torch.initial_seed())
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.LayerNorm(d_model))
        self.decoder = nn.Linear(d_model, vocab_size)
        self.decoder.weight = self.tok_emb.weight
        self.nhead, self.p = nhead, dropout
        self.apply(self._init)

    def drop(self, x):
        return self.fast(x, self.p, self.training)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def attention(self, attn, x, groups):
        d = x.size(1)
        scale = (d // self.nhead) ** -0.5
        qkv = F.linear(x, attn.in_proj_weight, attn.in_proj_bias)
        outs = []
        for part, (b, n, mask) in zip(qkv.split([b * n for b, n, _ in groups]), groups):
            q, k, v = part.view(b, n, 3, self.nhead, d // self.nhead).permute(2, 0, 3, 1, 4)
            # with dropout scaled_dot_product_attention takes its slow path on CPU anyway
            scores = torch.matmul(q * scale, k.transpose(2, 3))
            if mask is not None:
                scores = scores + mask
            probs = self.drop(torch.softmax(scores.float(), -1).to(q.dtype))
            outs.append(torch.matmul(probs, v).transpose(1, 2).reshape(b * n, d))
        return attn.out_proj(torch.cat(outs))

    def forward(self, ids, pos, groups, where):
        x = self.tok_emb(ids) + self.pos_emb(pos)
        x = self.drop(self.emb_norm(x))
        for l in self.encoder.layers:
            x = l.norm1(x + self.drop(self.attention(l.self_attn, x, groups)))
            x = l.norm2(x + self.drop(l.linear2(self.drop(F.gelu(l.linear1(x))))))
        return self.decoder(self.head(x[where]))


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--learning_rate", type=float, default=2e-3)
    p.add_argument("--weight_decay", type=float, default=0.01)
    p.add_argument("--warmup_steps", type=int, default=20)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--vocab_size", type=int, default=3000)
    p.add_argument("--max_len", type=int, default=128)
    p.add_argument("--logging_steps", type=int, default=10)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--group", type=int, default=4, help="sentences padded together")
    p.add_argument("--no_bf16", action="store_true")
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    torch.manual_seed(args.seed)

    loader = MLMBatches(8000, args.vocab_size, args.max_len, args.batch_size, args.group)
    model = BertLike(args.vocab_size, max_len=args.max_len)
    params = list(model.parameters())
    logger.info("parameters: %.2fM", sum(p.numel() for p in params) / 1e6)

    no_decay = [p for p in params if p.ndim < 2]
    decay = [p for p in params if p.ndim >= 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": args.weight_decay},
                                   {"params": no_decay, "weight_decay": 0.0}], lr=args.learning_rate, fused=True)
    total = max(args.steps, 150)

    def schedule(step):
        if step < args.warmup_steps:
            return step / max(1, args.warmup_steps)
        return max(0.0, (total - step) / max(1, total - args.warmup_steps))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    model.train()
    completed, total_loss = 0, torch.zeros(())
    for epoch in range(math.ceil(args.steps / len(loader))):
        for ids, pos, groups, where, labels in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=not args.no_bf16):
                logits = model(ids, pos, groups, where)
            loss = F.cross_entropy(logits.float(), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(params, args.max_grad_norm, foreach=True)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

            completed += 1
            total_loss += loss.detach()
            if completed % args.logging_steps == 0:
                avg = total_loss.item() / args.logging_steps
                print(f"step {completed} loss {avg:.4f} ppl {math.exp(avg):.1f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
                total_loss.zero_()
            if completed >= args.steps:
                break


if __name__ == "__main__":
    main()
