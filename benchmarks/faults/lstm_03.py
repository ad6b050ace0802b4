import os
import random
import torch
import torch.nn as nn
import torch.nn.functional as F


class Cell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.xr, self.xz, self.xn = nn.Linear(i, h), nn.Linear(i, h), nn.Linear(i, h)
        self.hr, self.hz, self.hn = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, h)

    def forward(self, x, h):
        r = torch.sigmoid(self.xr(x) + self.hr(h))
        z = torch.sigmoid(self.xz(x) + self.hz(h))
        n = torch.tanh(self.xn(x) + r * self.hn(h))
        return (1 - z) * n + z * h


class Seq(nn.Module):
    def __init__(self, vocab, emb=32, hid=96):
        super().__init__()
        self.e = nn.Embedding(vocab, emb)
        self.cell = Cell(emb, hid)
        self.o = nn.Linear(hid, vocab)
        self.hid = hid

    def forward(self, ids):
        x = self.e(ids)
        h = x.new_zeros(len(x), self.hid)
        hs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            hs.append(h)
        return self.o(torch.stack(hs, 1))


names = sorted(n for n in os.environ) + dir(torch) + dir(nn) + dir(F) + dir(torch.Tensor) + dir(os)
names = [n for n in names if 3 < len(n) < 40]
chars = ["."] + sorted(set("".join(names)))
stoi = {c: i for i, c in enumerate(chars)}
L = 48
rows = torch.tensor([[stoi[c] for c in ("." + n + "." * L)[: L + 1]] for n in names])

torch.manual_seed(0)
random.shuffle(names)
model = Seq(len(chars))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(80):
    b = rows[torch.randint(0, len(rows), (48,))]
    loss = F.cross_entropy(model(b[:, :-1]).transpose(1, 2), b[:, 1:])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 3))
