"""Word-level LSTM language model, truncated back-propagation: the state goes on, detached."""

import argparse
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="LSTM language model")
parser.add_argument("--emsize", type=int, default=160)
parser.add_argument("--nhid", type=int, default=160)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--lr", type=float, default=2.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        self.nhid = nhid
        self.nlayers = nlayers

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.nlayers, bsz, self.nhid),
            weight.new_zeros(self.nlayers, bsz, self.nhid),
        )


def repackage_hidden(h):
    """Wraps hidden states in new tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def batchify(ids, bsz):
    nbatch = len(ids) // bsz
    return ids[: nbatch * bsz].view(bsz, -1).t().contiguous()


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


stdlib = Path(sysconfig.get_paths()["stdlib"])
text = " ".join(p.read_text(errors="ignore") for p in sorted(stdlib.glob("[a-m]*.py")))
words = re.findall(r"\w+|[^\w\s]", text)[:300_000]
vocab = {w: i + 1 for i, (w, _) in enumerate(Counter(words).most_common(2999))}
ids = torch.tensor([vocab.get(w, 0) for w in words])
train_data = batchify(ids, args.batch_size)

model = RNNModel(3000, args.emsize, args.nhid, args.nlayers, args.dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

model.train()
step = 0
while step < args.steps:
    hidden = model.init_hidden(args.batch_size)
    for i in range(0, train_data.size(0) - 1, args.bptt):
        data, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, 3000), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        step += 1
        if step <= 100 or step % 5 == 0:
            print(f"step {step} loss {loss.item():.7f}")
        if step >= args.steps:
            break
    for group in optimizer.param_groups:
        group["lr"] /= 1.5
