import math
import os
from pathlib import Path

import torch
from torch import nn


def batchify(data, bsz):
    n = len(data) // bsz
    return data[: n * bsz].view(bsz, n).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=96, nhid=160, nlayers=1, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(out)), hidden


def repackage(h):
    return tuple(v.detach() for v in h)


def main(bptt=48, bsz=32, lr=3e-3, updates=90):
    torch.manual_seed(1111)
    raw = Path(os.__file__).parent.joinpath("typing.py").read_bytes()
    corpus = batchify(torch.tensor(list(raw)), bsz)
    model = RNNModel(256)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    hidden = (torch.zeros(1, bsz, 160), torch.zeros(1, bsz, 160))
    total, i = torch.zeros(()), 0
    for batch in range(1, updates + 1):
        if i + bptt + 1 > len(corpus):
            i = 0
        x, y = corpus[i : i + bptt], corpus[i + 1 : i + 1 + bptt]
        i += bptt
        hidden = repackage(hidden)
        out, hidden = model(x, hidden)
        loss = criterion(out.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.detach()
        if batch % 30 == 0:
            mean = total.item() / 30
            print(
                "| {:5d} batches | loss {:5.2f} | ppl {:8.2f}".format(batch, mean, math.exp(mean))
            )
            total.zero_()


if __name__ == "__main__":
    main()
