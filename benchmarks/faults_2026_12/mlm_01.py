"""Masked language model over words of the standard library."""

import os
import re
from collections import Counter
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 4000
MASK = 0


def words():
    folder = Path(os.__file__).parent
    text = " ".join((folder / n).read_text() for n in ("argparse.py", "inspect.py", "typing.py"))
    found = re.findall(r"\w+|[^\w\s]", text)
    known = {w: i + 2 for i, (w, _) in enumerate(Counter(found).most_common(VOCAB - 2))}
    return torch.tensor([known.get(w, 1) for w in found])


class Encoder(nn.Module):
    def __init__(self, dim=96, length=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(
            dim, 4, 256, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        h = self.body(self.emb(ids) + self.pos)
        return self.head(h)


def corrupt(ids, rate=0.15):
    hide = torch.rand(ids.shape) < rate
    return ids.masked_fill(hide, MASK), hide


def main():
    torch.manual_seed(0)
    data = words()
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(120):
        ids = data[torch.randint(0, len(data) - 32, (14, 1)) + torch.arange(32)]
        seen, hide = corrupt(ids)
        logits = model(seen)
        target = ids.masked_fill(~hide, -100)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print("step", step, "loss", round(loss.item(), 3))


if __name__ == "__main__":
    main()
