"""Property regression on SMILES-like strings with a small transformer (Accelerate)."""
import random
import re

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

MAX_LEN, EPOCHS = 160, 1
TOKEN = re.compile(r"Br|Cl|\[nH\]|[BCNOPSFIbcnops=#()\[\]+\-0-9]")
WEIGHT = {"C": 1.0, "c": 0.9, "N": -0.6, "n": -0.4, "O": -1.1, "o": -0.8, "S": 0.5, "F": 0.3, "Cl": 0.8, "Br": 1.1}


def grow(rng, depth=0):
    """A random chain with branches and aromatic rings."""
    out = []
    for _ in range(rng.randint(2, 7)):
        r = rng.random()
        if r < 0.18:
            out.append(rng.choice(["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "c1cc[nH]c1"]))
        elif r < 0.38 and depth < 2:
            out.append("C(" + grow(rng, depth + 1) + ")")
        elif r < 0.46:
            out.append("C(=O)")
        else:
            out.append(rng.choice(["C", "C", "C", "N", "O", "S"]))
    if rng.random() < 0.25:
        out.append(rng.choice(["F", "Cl", "Br"]))
    return "".join(out)


def library(n, seed):
    rng = random.Random(seed)
    rows = []
    while len(rows) < n:
        smiles = grow(rng)
        tokens = TOKEN.findall(smiles)
        if 8 <= len(tokens) <= MAX_LEN:
            value = sum(WEIGHT.get(t, 0.0) for t in tokens) - 0.4 * smiles.count("(=O)")
            rows.append((tokens, value / 10))
    return rows


class Molecules(Dataset):
    def __init__(self, rows, vocab):
        self.ids = [torch.tensor([vocab[t] for t in tokens]) for tokens, _ in rows]
        self.values = torch.tensor([v for _, v in rows])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.values[i]


def collate(items):
    ids = torch.zeros(len(items), MAX_LEN, dtype=torch.long)
    for row, (seq, _) in zip(ids, items):
        row[: len(seq)] = seq
    return ids, torch.stack([v for _, v in items])


class Regressor(nn.Module):
    def __init__(self, vocab, dim=96, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(MAX_LEN, dim) * 0.02)
        block = nn.TransformerEncoderLayer(dim, heads, dim * 3, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, ids):
        pad = ids == 0
        h = self.tokens(ids) + self.positions[: ids.size(1)]
        h = self.encoder(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1)
        pooled = (h * keep).sum(1) / keep.sum(1)
        return self.out(pooled).squeeze(-1)


def main():
    set_seed(13)
    accelerator = Accelerator(cpu=True)
    rows = library(3400, seed=13)
    vocab = {t: i + 1 for i, t in enumerate(sorted({t for tokens, _ in rows for t in tokens}))}
    train = DataLoader(Molecules(rows[:3200], vocab), batch_size=16, shuffle=True, collate_fn=collate)
    valid = DataLoader(Molecules(rows[3200:], vocab), batch_size=50, collate_fn=collate)
    model = Regressor(len(vocab) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)
    lengths = [len(t) for t, _ in rows]
    accelerator.print(f"{len(rows)} molecules, mean length {sum(lengths) / len(lengths):.1f}, longest {max(lengths)}")

    for epoch in range(EPOCHS):
        model.train()
        for step, (ids, value) in enumerate(train):
            loss = nn.functional.mse_loss(model(ids), value)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 40 == 0:
                accelerator.print(f"epoch {epoch} step {step:3d}  mse {loss.item():.4f}")
        model.eval()
        err, count = 0.0, 0
        with torch.no_grad():
            for ids, value in valid:
                err += (model(ids) - value).abs().sum().item()
                count += len(value)
        accelerator.print(f"epoch {epoch}  valid mae {err / count:.4f}")


if __name__ == "__main__":
    main()
