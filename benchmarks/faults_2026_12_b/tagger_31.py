import argparse
import io
import keyword
import os
import random
import tokenize
from collections import Counter

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TAGS = ["NAME", "KEYWORD", "NUMBER", "STRING", "OP"]
IGNORE = -100


def read_statements(n_files):
    folder = os.path.dirname(os.__file__)
    files = sorted(f for f in os.listdir(folder) if f.endswith(".py"))[:n_files]
    out = []
    for name in files:
        with open(os.path.join(folder, name), encoding="utf-8", errors="ignore") as f:
            source = f.read()
        words, tags = [], []
        for tok in tokenize.generate_tokens(io.StringIO(source).readline):
            if tok.type == tokenize.NEWLINE:
                if 8 <= len(words) <= 80:
                    out.append((words, tags))
                words, tags = [], []
            elif tok.type == tokenize.NAME:
                words.append(tok.string)
                tags.append(1 if keyword.iskeyword(tok.string) else 0)
            elif tok.type == tokenize.NUMBER:
                words.append(tok.string)
                tags.append(2)
            elif tok.type == tokenize.STRING:
                words.append(tok.string[:12])
                tags.append(3)
            elif tok.type == tokenize.OP:
                words.append(tok.string)
                tags.append(4)
    return out


class Statements(Dataset):
    def __init__(self, rows, vocab):
        self.rows = [([vocab.get(w, 1) for w in words], tags) for words, tags in rows]
        self.longest = max(len(ids) for ids, _ in self.rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collate:
    def __init__(self, width):
        self.width = width

    def __call__(self, rows):
        ids = torch.zeros(len(rows), self.width, dtype=torch.long)
        tags = torch.full((len(rows), self.width), IGNORE)
        for i, (x, y) in enumerate(rows):
            ids[i, :len(x)] = torch.tensor(x)
            tags[i, :len(y)] = torch.tensor(y)
        return ids, tags


class Tagger(nn.Module):
    def __init__(self, n_words, dim, n_tags, max_pos):
        super().__init__()
        self.words = nn.Embedding(n_words, dim, padding_idx=0)
        self.pos = nn.Embedding(max_pos, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, n_tags)

    def forward(self, ids):
        x = self.words(ids) + self.pos(torch.arange(ids.size(1)))
        x = self.encoder(x, src_key_padding_mask=ids == 0)
        return self.out(x)


def train(args):
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    rows = read_statements(args.files)
    random.shuffle(rows)
    counts = Counter(w for words, _ in rows for w in words)
    vocab = {w: i + 2 for i, (w, _) in enumerate(counts.most_common(5000))}
    data = Statements(rows, vocab)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True,
                        collate_fn=Collate(data.longest))
    model = Tagger(len(vocab) + 2, args.dim, len(TAGS), 128)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)
    print(f"{len(data)} statements, {len(loader)} batches per epoch")

    step = 0
    while step < args.steps:
        for ids, tags in loader:
            logits = model(ids)
            loss = criterion(logits.flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.log_every == 0:
                real = tags != IGNORE
                acc = (logits.argmax(-1)[real] == tags[real]).float().mean().item()
                print(f"step {step} loss {loss.item():.4f} acc {acc:.3f}")
            if step == args.steps:
                break
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log-every", type=int, default=25)
    parser.add_argument("--seed", type=int, default=3)
    train(parser.parse_args())
