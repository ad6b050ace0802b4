import collections
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2


class Reverser(nn.Module):
    """GRU encoder and decoder with dot attention, teacher forced."""

    def __init__(self, vocab=60, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(2 * dim, vocab)

    def forward(self, src, tgt):
        memory, h = self.enc(self.emb(src))
        states, _ = self.dec(self.emb(tgt), h)
        mix = (states @ memory.transpose(1, 2) / math.sqrt(memory.shape[-1])).softmax(-1) @ memory
        return self.out(torch.cat([states, mix], -1))


def batch_of(n, length=24, vocab=60):
    src = torch.randint(3, vocab, (n, length))
    tgt = src.flip(1)
    bos = torch.full((n, 1), BOS)
    eos = torch.full((n, 1), EOS)
    return src, torch.cat([bos, tgt], 1), torch.cat([tgt, eos], 1)


def grams(tokens, n):
    return collections.Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def bleu(outputs, references, order=4):
    hits, totals = [0] * order, [0] * order
    length_o = length_r = 0
    for o, r in zip(outputs, references):
        length_o += len(o)
        length_r += len(r)
        for n in range(1, order + 1):
            mine, theirs = grams(o, n), grams(r, n)
            hits[n - 1] += sum((mine & theirs).values())
            totals[n - 1] += sum(mine.values())
    if min(hits) == 0:
        return 0.0
    logs = sum(math.log(h / t) for h, t in zip(hits, totals)) / order
    return math.exp(logs + min(0.0, 1 - length_r / length_o))


torch.manual_seed(21)
model = Reverser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
curve = []
for step in range(150):
    src, inp, tgt = batch_of(192)
    logits = model(src, inp)
    loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score = bleu(logits.argmax(-1).tolist(), tgt.tolist())
    curve.append((loss.item(), score))
    if step % 30 == 0:
        print("step %d loss %.3f bleu %.3f" % (step, *curve[-1]))
