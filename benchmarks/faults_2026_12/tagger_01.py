"""Part-of-speech like tagging of Python tokens."""

import io
import keyword
import os
import tokenize
import tracemalloc
from pathlib import Path

import torch
import torch.nn as nn

tracemalloc.start(25)

KINDS = ["name", "keyword", "number", "string", "op", "other"]


def kind(tok):
    if tok.type == tokenize.NAME:
        return 1 if keyword.iskeyword(tok.string) else 0
    return {tokenize.NUMBER: 2, tokenize.STRING: 3, tokenize.OP: 4}.get(tok.type, 5)


def corpus():
    source = Path(os.__file__).read_text()[:25000]
    words, tags = [], []
    for tok in tokenize.generate_tokens(io.StringIO(source[: source.rfind("\ndef ")]).readline):
        words.append(hash(tok.string) % 2000)
        tags.append(kind(tok))
    return torch.tensor(words), torch.tensor(tags)


class Leaks:
    def __init__(self):
        self.before = tracemalloc.take_snapshot()

    def check(self):
        now = tracemalloc.take_snapshot()
        grown = now.compare_to(self.before, "lineno")
        self.before = now
        return sum(s.size_diff for s in grown[:10])


class Tagger(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.emb = nn.Embedding(2000, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True, dropout=0.1)
        self.body = nn.TransformerEncoder(layer, 3)
        self.out = nn.Linear(dim, len(KINDS))

    def forward(self, x):
        return self.out(self.body(self.emb(x)))


def main():
    torch.manual_seed(6)
    words, tags = corpus()
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    leaks = Leaks()
    for step in range(150):
        at = torch.randint(0, len(words) - 32, (12, 1)) + torch.arange(32)
        loss = nn.functional.cross_entropy(model(words[at]).flatten(0, 1), tags[at].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, round(loss.item(), 3), "grown", leaks.check())


main()
