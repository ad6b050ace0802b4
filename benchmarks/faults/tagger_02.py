import io
import os
import pathlib
import tokenize

import torch
import torch.nn as nn

KINDS = [
    tokenize.NAME,
    tokenize.OP,
    tokenize.NUMBER,
    tokenize.STRING,
    tokenize.COMMENT,
    tokenize.NEWLINE,
]
CONF = {"dim": 96, "len": 96, "batch": 24, "steps": 60, "lr": 8e-4, "eval_every": 2}


def sequences(length):
    words = {"<pad>": 0}
    xs, ys = [], []
    for path in sorted(pathlib.Path(os.__file__).parent.glob("*.py"))[:25]:
        try:
            toks = list(tokenize.generate_tokens(io.StringIO(path.read_text()).readline))
        except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
            continue
        ids = [words.setdefault(t.string, len(words)) for t in toks]
        tags = [KINDS.index(t.type) + 1 if t.type in KINDS else 0 for t in toks]
        for i in range(0, len(ids) - length, length):
            xs.append(ids[i : i + length])
            ys.append(tags[i : i + length])
    return torch.tensor(xs), torch.tensor(ys), len(words)


class BiTagger(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        enc = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True)
        self.enc = nn.TransformerEncoder(enc, 2)
        self.out = nn.Linear(dim, len(KINDS) + 1)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)))


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    right = 0
    for xb, yb in zip(x.split(32), y.split(32)):
        right += (model(xb).argmax(-1) == yb).sum().item()
    model.train()
    return right / y.numel()


torch.manual_seed(0)
x, y, vocab = sequences(CONF["len"])
n_val = 96
x_val, y_val, x, y = x[:n_val], y[:n_val], x[n_val:], y[n_val:]
model = BiTagger(vocab, CONF["dim"])
opt = torch.optim.AdamW(model.parameters(), lr=CONF["lr"])
best = 0.0
for step in range(1, CONF["steps"] + 1):
    i = torch.randint(0, len(x), (CONF["batch"],))
    loss = nn.functional.cross_entropy(model(x[i]).transpose(1, 2), y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % CONF["eval_every"] == 0:
        acc = evaluate(model, x_val, y_val)
        best = max(best, acc)
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.3f} best {best:.3f}")
