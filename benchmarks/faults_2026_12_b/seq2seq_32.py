"""Reverse-and-sort sequence transduction with a transformer, driven by Accelerate."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

LETTERS = 40
PAD, BOS, EOS, OFFSET = 0, 1, 2, 3


class Shuffled(Dataset):
    """Input: a list of symbols; output: the even positions sorted, then the odd ones reversed."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.pairs = []
        for _ in range(n):
            row = [rng.randrange(LETTERS) + OFFSET for _ in range(rng.randint(20, 24))]
            out = sorted(row[::2]) + row[1::2][::-1]
            self.pairs.append((torch.tensor(row), torch.tensor([BOS] + out + [EOS])))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(rows):
    src, tgt = zip(*rows)
    pad = nn.utils.rnn.pad_sequence
    return pad(src, batch_first=True), pad(tgt, batch_first=True)


class Positions(nn.Module):
    def __init__(self, dim, longest=64):
        super().__init__()
        at = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(longest, dim)
        table[:, 0::2] = torch.sin(at * rate)
        table[:, 1::2] = torch.cos(at * rate)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        return x + self.table[:x.size(1)]


class Transducer(nn.Module):
    def __init__(self, dim=96, longest=64):
        super().__init__()
        self.emb = nn.Embedding(LETTERS + OFFSET, dim, padding_idx=PAD)
        self.pos = Positions(dim)
        self.body = nn.Transformer(dim, 4, 2, 2, 3 * dim, dropout=0.1, batch_first=True)
        self.body.encoder.enable_nested_tensor = False
        self.out = nn.Linear(dim, LETTERS + OFFSET)
        mask = torch.triu(torch.ones(longest, longest, dtype=torch.bool), diagonal=1)
        self.register_buffer("causal", mask, persistent=False)

    def forward(self, src, tgt):
        t = tgt.size(1)
        hidden = self.body(
            self.pos(self.emb(src)), self.pos(self.emb(tgt)), tgt_mask=self.causal[:t, :t],
            src_key_padding_mask=src == PAD, tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=src == PAD)
        return self.out(hidden)


def evaluate(model, loader, accelerator):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for src, tgt in loader:
            guess = model(src, tgt[:, :-1]).argmax(-1)
            guess, gold = accelerator.gather_for_metrics((guess, tgt[:, 1:].contiguous()))
            real = gold != PAD
            right += (guess[real] == gold[real]).sum().item()
            total += real.sum().item()
    model.train()
    return right / total


def main(epochs=3, batch=24):
    set_seed(13)
    accelerator = Accelerator(cpu=True)
    model = Transducer()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    train = DataLoader(Shuffled(1680, 1), batch, shuffle=True, collate_fn=collate, drop_last=True)
    valid = DataLoader(Shuffled(96, 2), 48, collate_fn=collate)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=epochs * len(train))
    model, opt, train, valid, sched = accelerator.prepare(model, opt, train, valid, sched)

    for epoch in range(epochs):
        bar = tqdm(train, desc=f"epoch {epoch}", mininterval=1.0)
        for src, tgt in bar:
            logits = model(src, tgt[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(),
                                   ignore_index=PAD, label_smoothing=0.1)
            opt.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        accelerator.print(f"epoch {epoch} token accuracy {evaluate(model, valid, accelerator):.3f}")


if __name__ == "__main__":
    main()
