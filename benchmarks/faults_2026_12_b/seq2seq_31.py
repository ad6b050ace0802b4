"""Number-to-words translation with a GRU encoder-decoder and attention."""
import random
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen").split()
TENS = "x x twenty thirty forty fifty sixty seventy eighty ninety".split()
PAD, BOS, EOS = 0, 1, 2


def spell(n):
    if n < 20:
        return [ONES[n]]
    if n < 100:
        return [TENS[n // 10]] + ([ONES[n % 10]] if n % 10 else [])
    if n < 1000:
        return [ONES[n // 100], "hundred"] + (spell(n % 100) if n % 100 else [])
    for base, name in ((10 ** 6, "million"), (10 ** 3, "thousand")):
        if n >= base:
            return spell(n // base) + [name] + (spell(n % base) if n % base else [])


WORDS = {w: i + 3 for i, w in enumerate(ONES + TENS[2:] + ["hundred", "thousand", "million"])}


def make_pairs(n, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(n):
        value = rng.randrange(10 ** 5, 10 ** 9)
        src = torch.tensor([int(c) + 3 for c in str(value)] + [EOS])
        tgt = torch.tensor([BOS] + [WORDS[w] for w in spell(value)] + [EOS])
        pairs.append((src, tgt))
    return pairs


def collate(rows):
    src, tgt = zip(*rows)
    return pad_sequence(src, batch_first=True), pad_sequence(tgt, batch_first=True)


class Translator(nn.Module):
    def __init__(self, n_src, n_tgt, emb=64, hidden=160):
        super().__init__()
        self.src = nn.Embedding(n_src, emb, padding_idx=PAD)
        self.tgt = nn.Embedding(n_tgt, emb, padding_idx=PAD)
        self.enc = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)
        self.dec = nn.GRU(emb, hidden, batch_first=True)
        self.keys = nn.Linear(2 * hidden, hidden)
        self.out = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.Tanh(), nn.Linear(hidden, n_tgt))

    def forward(self, src, tgt):
        memory, last = self.enc(self.src(src))
        start = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1))).unsqueeze(0)
        h, _ = self.dec(self.tgt(tgt), start)
        scores = h @ self.keys(memory).transpose(1, 2) / h.size(-1) ** 0.5
        scores = scores.masked_fill((src == PAD).unsqueeze(1), float("-inf"))
        context = scores.softmax(-1) @ memory
        return self.out(torch.cat([h, context], -1))


class Monitor:
    def __init__(self, model):
        self.model = model
        self.writer = SummaryWriter(tempfile.mkdtemp(prefix="numbers_"))

    def after_backward(self, loss, lr, step):
        self.writer.add_scalar("train/loss", loss, step)
        self.writer.add_scalar("train/lr", lr, step)
        for name, p in self.model.named_parameters():
            self.writer.add_histogram(f"grads/{name}", p.grad, step)

    def close(self):
        self.writer.close()


def exact_match(model, pairs):
    model.eval()
    src, tgt = collate(pairs)
    with torch.no_grad():
        guess = model(src, tgt[:, :-1]).argmax(-1)
    model.train()
    gold = tgt[:, 1:]
    return ((guess == gold) | (gold == PAD)).all(1).float().mean().item()


def main(steps=240, batch=64):
    torch.manual_seed(9)
    loader = DataLoader(make_pairs(4000, 9), batch, shuffle=True, collate_fn=collate, drop_last=True)
    held = make_pairs(200, 10)
    model = Translator(13, len(WORDS) + 3)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.998)
    monitor = Monitor(model)
    step = 0
    while step < steps:
        for src, tgt in loader:
            logits = model(src, tgt[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            value = loss.item()
            monitor.after_backward(value, sched.get_last_lr()[0], step)
            opt.step()
            sched.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {value:.4f}")
            if step == steps:
                break
    monitor.close()
    print(f"teacher-forced exact match {exact_match(model, held):.3f}")


if __name__ == "__main__":
    main()
