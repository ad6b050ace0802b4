import gc
import os
from pathlib import Path

import torch
from torch import nn

SEQ, BATCH, STEPS = 64, 32, 100


class CharLSTM(nn.Module):
    def __init__(self, vocab, hidden=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, 64)
        self.rnn = nn.LSTM(64, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x, state=None):
        h, state = self.rnn(self.emb(x), state)
        return self.out(h), state


text = Path(os.__file__).read_text() + Path(torch.__file__).read_text()
vocab = sorted(set(text))
index = {c: i for i, c in enumerate(vocab)}
data = torch.tensor([index[c] for c in text])
documents = [{"id": i, "words": line.split()} for i, line in enumerate(text.splitlines())]
print(len(documents), "lines", len(data), "characters")

torch.manual_seed(0)
net = CharLSTM(len(vocab))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
streams = data[: len(data) // BATCH * BATCH].view(BATCH, -1)
state, pos = None, 0
for step in range(STEPS):
    if pos + SEQ + 1 >= streams.shape[1]:
        pos, state = 0, None
    x, y = streams[:, pos : pos + SEQ], streams[:, pos + 1 : pos + SEQ + 1]
    pos += SEQ
    logits, state = net(x, state)
    state = tuple(s.detach() for s in state)
    loss = nn.functional.cross_entropy(logits.reshape(-1, len(vocab)), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    del logits
    if step % 4 == 0:
        gc.collect()
    if step % 20 == 0:
        print("step", step, "nats", round(loss.item(), 3))
