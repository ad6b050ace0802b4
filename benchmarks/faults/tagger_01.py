import argparse
import keyword
import os
import re
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PATTERN = re.compile(r"[A-Za-z_]\w*|\d+\.?\d*|\"[^\"\n]*\"|'[^'\n]*'|\s+|[^\w\s]")
TAGS = ["pad", "keyword", "name", "number", "string", "space", "operator"]


def tag_of(token):
    if keyword.iskeyword(token):
        return 1
    if token[0].isalpha() or token[0] == "_":
        return 2
    if token[0].isdigit():
        return 3
    if token[0] in "\"'":
        return 4
    if token.isspace():
        return 5
    return 6


class SourceFiles(Dataset):
    def __init__(self, count=120):
        root = Path(os.__file__).parent
        texts = [p.read_text(errors="ignore") for p in sorted(root.glob("*.py"))[:count]]
        self.chunks = [t[i : i + 12000] for t in texts for i in range(0, len(t) - 12000, 2000)]

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, i):
        return self.chunks[i]


class Collate:
    def __init__(self, length, buckets):
        self.length, self.buckets = length, buckets

    def encode(self, text):
        ids, tags = [], []
        for match in PATTERN.finditer(text):
            token = match.group(0)
            h = 0
            for ch in token:
                h = (h * 31 + ord(ch)) & 0xFFFFFFFF
            ids.append(h % self.buckets)
            tags.append(tag_of(token))
        ids, tags = ids[: self.length], tags[: self.length]
        pad = self.length - len(ids)
        return ids + [0] * pad, tags + [0] * pad

    def __call__(self, texts):
        pairs = [self.encode(t) for t in texts]
        return torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs])


class Tagger(nn.Module):
    def __init__(self, vocab, dim=96, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, 512, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, len(TAGS))

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids) + self.pos[:, : ids.shape[1]]))


def run(args):
    torch.manual_seed(args.seed)
    data = SourceFiles()
    loader = DataLoader(
        data, args.batch, shuffle=True, drop_last=True, collate_fn=Collate(args.length, args.vocab)
    )
    model = Tagger(args.vocab)
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    ce = nn.CrossEntropyLoss(ignore_index=0)
    step = 0
    while step < args.steps:
        for ids, tags in loader:
            loss = ce(model(ids).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0:
                print("step", step, "loss", loss.item())
            if step >= args.steps:
                break


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--length", type=int, default=128)
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--seed", type=int, default=0)
    run(ap.parse_args())
