"""BiLSTM slot tagger for synthetic travel requests."""
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.metrics import f1_score
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

CITIES = [f"{a}{b}" for a in ("nor", "sal", "bel", "kar", "mon", "ver", "tal") for b in ("ton", "berg", "ville", "field", "mouth")]
FILLER = "please book find me a an the flight train from to on at cheap early late ticket seat and then also".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
LABELS = ["O", "B-FROM", "B-TO", "B-DAY", "B-NUM"]


def make_request(rng):
    words, tags = [], []
    for _ in range(rng.randint(3, 6)):
        for w in rng.sample(FILLER, rng.randint(2, 5)):
            words.append(w)
            tags.append(0)
        kind = rng.randint(1, 4)
        if kind in (1, 2):
            words += ["from" if kind == 1 else "to", rng.choice(CITIES)]
            tags += [0, kind]
        elif kind == 3:
            words.append(rng.choice(DAYS))
            tags.append(3)
        else:
            words.append(str(rng.randint(1, 60)))
            tags.append(4)
    return words, tags


class SlotTagger(nn.Module):
    def __init__(self, n_words, emb=64, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(n_words, emb, padding_idx=0)
        self.rnn = nn.LSTM(emb, hidden, bidirectional=True, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(2 * hidden, len(LABELS))

    def forward(self, x):
        h, _ = self.rnn(self.drop(self.emb(x)))
        return self.out(self.drop(h))


class RunningScore:
    def __init__(self):
        self.gold = []
        self.guess = []

    def update(self, logits, tags):
        keep = tags != -1
        self.gold.extend(tags[keep].tolist())
        self.guess.extend(logits.argmax(-1)[keep].tolist())
        return self.value()

    def value(self):
        return f1_score(self.gold, self.guess, average="macro", zero_division=0)


class Trainer:
    def __init__(self, model, loader, lr=2e-3, max_steps=300, report=25):
        self.model = model
        self.loader = loader
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 100, 0.5)
        self.loss = nn.CrossEntropyLoss(ignore_index=-1)
        self.max_steps = max_steps
        self.report = report
        self.step = 0
        self.score = RunningScore()

    def one_batch(self, x, y):
        logits = self.model(x)
        loss = self.loss(logits.transpose(1, 2), y)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        self.sched.step()
        return loss, self.score.update(logits.detach(), y)

    def fit(self):
        self.model.train()
        while self.step < self.max_steps:
            for x, y in self.loader:
                loss, f1 = self.one_batch(x, y)
                self.step += 1
                if self.step % self.report == 0:
                    print(f"[{self.step:4d}] loss={loss.item():.4f} running f1={f1:.4f}")
                if self.step >= self.max_steps:
                    break


def collate(rows):
    xs, ys = zip(*rows)
    return (pad_sequence(xs, batch_first=True),
            pad_sequence(ys, batch_first=True, padding_value=-1))


def main():
    rng = random.Random(5)
    np.random.seed(5)
    torch.manual_seed(5)
    rows = [make_request(rng) for _ in range(6000)]
    vocab = {}
    for words, _ in rows:
        for w in words:
            vocab.setdefault(w, len(vocab) + 1)
    data = [(torch.tensor([vocab[w] for w in words]), torch.tensor(tags)) for words, tags in rows]
    loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
    Trainer(SlotTagger(len(vocab) + 1), loader).fit()


if __name__ == "__main__":
    main()
