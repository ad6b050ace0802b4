"""Which standard-library module is a line of code from? nn.TransformerEncoder, padding masks."""

import argparse
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MODULES = ["argparse", "ast", "datetime", "decimal", "doctest", "inspect", "mailbox", "pickle"]
PAD, UNK = 0, 1
MAX_LEN = 64


class CodeSnippets(Dataset):
    def __init__(self):
        try:
            stdlib = Path(sysconfig.get_paths()["stdlib"])
            texts = [(stdlib / f"{name}.py").read_text() for name in MODULES]
        except FileNotFoundError:
            names = sorted(stdlib.glob("*.py"), key=lambda p: -p.stat().st_size)[: len(MODULES)]
            texts = [p.read_text() for p in names]
        snippets = []
        for label, text in enumerate(texts):
            lines = [line for line in text.splitlines() if line.strip()]
            for i in range(0, len(lines) - 5, 5):
                tokens = re.findall(r"\w+|[^\w\s]", "\n".join(lines[i : i + 5]))
                snippets.append((tokens[:MAX_LEN], label))
        counts = Counter(t for tokens, _ in snippets for t in tokens)
        self.vocab = {t: i + 2 for i, (t, _) in enumerate(counts.most_common(4000))}
        self.items = [
            (torch.tensor([self.vocab.get(t, UNK) for t in tokens]), label)
            for tokens, label in snippets
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    tokens, labels = zip(*batch, strict=True)
    tokens = pad_sequence(tokens, batch_first=True, padding_value=PAD)
    return tokens, torch.tensor(labels), tokens == PAD


class Classifier(nn.Module):
    def __init__(self, vocab_size, n_classes, dim=128, heads=4, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=PAD)
        self.position = nn.Embedding(MAX_LEN, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=4 * dim, dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(dim, n_classes)

    def forward(self, tokens, padding):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.position(positions))
        x = self.encoder(x, src_key_padding_mask=padding)
        keep = (~padding).unsqueeze(-1).float()
        return self.fc((x * keep).sum(1) / keep.sum(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=550)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    dataset = CodeSnippets()
    loader = DataLoader(dataset, args.batch_size, shuffle=True, collate_fn=collate)
    model = Classifier(len(dataset.vocab) + 2, len(MODULES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=200)
    model.train()
    step = 0
    while step < args.steps:
        for tokens, labels, padding in loader:
            logits = model(tokens, padding)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step <= 100 or step % 5 == 0:
                print(f"step {step} loss {loss.item():.8f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
