"""Implicit-feedback document recommender trained with sampled softmax over negatives."""
import random
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

N_USERS, N_DOCS = 800, 6000
CLICKS = 900
NEGATIVES = 16
SESSION = 30


def simulate_clicks(rng):
    user_taste = rng.standard_normal((N_USERS, 12))
    doc_topic = rng.standard_normal((N_DOCS, 12))
    popularity = rng.gumbel(size=N_DOCS)
    log = []
    for u in range(N_USERS):
        score = doc_topic @ user_taste[u] + popularity + rng.gumbel(size=N_DOCS)
        for d in np.argpartition(-score, CLICKS)[:CLICKS]:
            log.append((u, int(d)))
    return log


class History:
    """Everything each reader has opened, in order."""

    def __init__(self, log):
        self.docs = defaultdict(list)
        for user, doc in log:
            self.docs[user].append(doc)

    def opened(self, user):
        return self.docs[user]


class ClickData(Dataset):
    def __init__(self, log, history, seed):
        self.log = log
        self.history = history
        self.rng = random.Random(seed)

    def __len__(self):
        return len(self.log)

    def draw_negatives(self, user):
        opened = self.history.opened(user)
        picked = []
        while len(picked) < NEGATIVES:
            doc = self.rng.randrange(N_DOCS)
            if doc not in opened:
                picked.append(doc)
        return picked

    def __getitem__(self, i):
        user, doc = self.log[i]
        opened = self.history.opened(user)
        start = self.rng.randrange(len(opened) - SESSION)
        recent = opened[start:start + SESSION]
        return recent, [doc] + self.draw_negatives(user)


def collate(rows):
    recent, cands = zip(*rows)
    return torch.tensor(recent), torch.tensor(cands)


class Recommender(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.docs = nn.Embedding(N_DOCS, dim)
        nn.init.normal_(self.docs.weight, std=0.1)
        self.attend = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Sequential(nn.Linear(dim, 3 * dim), nn.ReLU(), nn.Linear(3 * dim, dim))

    def forward(self, recent, cands):
        h = self.docs(recent)
        a, _ = self.attend(h, h, h, need_weights=False)
        h = self.norm(h + a).mean(1)
        reader = h + self.mix(h)
        return torch.einsum("bd,bcd->bc", reader, self.docs(cands))


class Fit:
    def __init__(self, seed=6, batch=128, steps=400):
        torch.manual_seed(seed)
        log = simulate_clicks(np.random.default_rng(seed))
        self.loader = DataLoader(ClickData(log, History(log), seed), batch, shuffle=True,
                                 collate_fn=collate, drop_last=True)
        self.model = Recommender()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.steps = steps

    def run(self):
        gold = None
        seen = 0.0
        for step, (recent, cands) in enumerate(self.loader, 1):
            if gold is None:
                gold = torch.zeros(len(recent), dtype=torch.long)
            loss = F.cross_entropy(self.model(recent, cands), gold)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.opt.step()
            seen += loss.item()
            if step % 30 == 0:
                print(f"step {step} loss {seen / 30:.4f}")
                seen = 0.0
            if step == self.steps:
                break


if __name__ == "__main__":
    Fit().run()
