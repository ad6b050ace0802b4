import random
import string

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = "_" + string.ascii_lowercase + " "
LEN = 24


def make_pair():
    n = random.randint(12, LEN)
    s = "".join(random.choice(VOCAB[1:]) for _ in range(n))
    return s, " ".join(w[::-1] for w in s.split(" "))


def encode(texts):
    return torch.tensor([[VOCAB.index(c) for c in t.ljust(LEN, "_")[:LEN]] for t in texts])


def decode(ids):
    return "".join(VOCAB[i] for i in ids)


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        diag, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            diag, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diag + (ca != cb))
    return row[-1]


def error_rate(logits, targets):
    pred = logits.argmax(-1).tolist()
    total = sum(distance(decode(p), t.ljust(LEN, "_")) for p, t in zip(pred, targets))
    return total / sum(len(t) for t in targets)


class Reverser(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB), dim)
        self.enc = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.dec = nn.LSTM(2 * dim, dim, batch_first=True)
        self.out = nn.Linear(dim, len(VOCAB))

    def forward(self, ids):
        h, _ = self.enc(self.emb(ids))
        h, _ = self.dec(h.flip(1))
        return self.out(h.flip(1))


def main(steps=80, batch=112):
    random.seed(0)
    torch.manual_seed(0)
    pairs = [make_pair() for _ in range(2000)]
    src = encode([p[0] for p in pairs])
    tgt = encode([p[1] for p in pairs])
    model = Reverser()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    ema = 1.0
    for step in range(steps):
        pick = random.sample(range(len(pairs)), batch)
        logits = model(src[pick])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[pick].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        cer = error_rate(logits, [pairs[i][1] for i in pick])
        ema = 0.95 * ema + 0.05 * cer
        if step % 20 == 0:
            print(f"{step:4d} loss {loss.item():.3f} cer {ema:.3f}")


if __name__ == "__main__":
    main()
