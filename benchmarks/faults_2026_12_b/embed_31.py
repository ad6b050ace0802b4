"""Distil a sentence encoder into a smaller one (closures instead of classes for the loop)."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 8
VOCAB = 3000
BATCH = 24
LENGTH = 40
STEPS = 240


class SentenceEncoder(nn.Module):
    def __init__(self, dim, layers, heads, out=128):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        block = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, out)

    def forward(self, ids):
        pad = ids == 0
        h = self.body(self.tok(ids) + self.pos[:ids.size(1)], src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.proj((h * keep).sum(1) / keep.sum(1))


def make_corpus(n, seed):
    """Sentences drawn from 40 topics with Zipf-like words."""
    gen = torch.Generator().manual_seed(seed)
    ranks = 1.0 / torch.arange(2, VOCAB + 1).float()
    topics = [torch.randperm(VOCAB - 1, generator=gen) + 1 for _ in range(40)]
    rows = []
    for i in range(n):
        k = torch.randint(LENGTH - 6, LENGTH + 1, (1,), generator=gen).item()
        draw = torch.multinomial(ranks, k, replacement=True, generator=gen)
        rows.append(topics[i % 40][draw])
    return rows


def make_batcher(rows, drop, seed):
    rng = random.Random(seed)
    gen = torch.Generator().manual_seed(seed)

    def next_batch():
        chosen = rng.sample(rows, BATCH)
        ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        hide = (torch.rand(ids.shape, generator=gen) < drop) & (ids != 0)
        hide[:, 0] = False
        return ids.masked_fill(hide, 1)

    return next_batch


def make_objective(teacher, student, tau=0.05, beta=0.5):
    def similarity(z):
        z = F.normalize(z, dim=-1)
        return z @ z.T / tau

    def objective(ids):
        target = teacher(ids)
        guess = student(ids)
        direct = 1 - F.cosine_similarity(guess, target, dim=-1).mean()
        p = F.softmax(similarity(target), dim=-1)
        q = F.log_softmax(similarity(guess), dim=-1)
        relation = F.kl_div(q, p, reduction="batchmean")
        return direct + beta * relation

    return objective


def make_trainer(params, objective, lr):
    params = list(params)
    opt = torch.optim.AdamW(params, lr=lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=STEPS)

    def update(ids):
        loss = objective(ids)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        return loss.detach()

    return update


def run():
    random.seed(SEED)
    torch.manual_seed(SEED)
    teacher = SentenceEncoder(dim=128, layers=3, heads=4)
    teacher.eval()
    student = SentenceEncoder(dim=96, layers=2, heads=4)
    next_batch = make_batcher(make_corpus(4000, SEED), drop=0.1, seed=SEED)
    update = make_trainer(student.parameters(), make_objective(teacher, student), lr=1e-3)

    smooth = None
    for step in range(1, STEPS + 1):
        loss = update(next_batch())
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        if step % 30 == 0:
            print(f"{step:4d}/{STEPS}  distillation loss {smooth.item():.4f}")


run()
