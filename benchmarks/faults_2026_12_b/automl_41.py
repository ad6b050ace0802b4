"""Random search with k-fold cross-validation over MLP widths for a churn table."""
import io
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn


@dataclass
class Trial:
    width: int
    depth: int
    dropout: float
    lr: float


def sample_trial(r):
    return Trial(width=r.choice([768, 896, 1024]), depth=r.choice([2, 3]),
                 dropout=r.choice([0.0, 0.1, 0.2]), lr=10 ** r.uniform(-3.6, -3.0))


def build(trial, n_in):
    layers, d = [], n_in
    for _ in range(trial.depth):
        layers += [nn.Linear(d, trial.width), nn.LayerNorm(trial.width), nn.ReLU(), nn.Dropout(trial.dropout)]
        d = trial.width
    return nn.Sequential(*layers, nn.Linear(d, 1))


class FoldTrainer:
    def __init__(self, trial, n_in, batch_size=32):
        self.model = build(trial, n_in)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=trial.lr)
        self.batch_size = batch_size
        self.good = None
        self.recovered = 0

    def remember(self):
        self.good = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict()}, self.good)

    def recover(self):
        self.good.seek(0)
        state = torch.load(self.good)
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.recovered += 1

    def step(self, x, y):
        loss = F.binary_cross_entropy_with_logits(self.model(x).squeeze(1), y)
        value = loss.item()
        if not math.isfinite(value):
            self.recover()
            return None
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.opt.step()
        self.remember()
        return value

    def epoch(self, x, y):
        order = torch.randperm(len(x))
        losses = []
        for idx in order.split(self.batch_size):
            value = self.step(x[idx], y[idx])
            if value is not None:
                losses.append(value)
        return sum(losses) / len(losses)

    @torch.no_grad()
    def predict(self, x):
        self.model.eval()
        p = torch.sigmoid(self.model(x).squeeze(1))
        self.model.train()
        return p.numpy()


def cross_validate(trial, x, y, folds=3, epochs=2):
    scores = []
    for k, (tr, va) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y)):
        scaler = StandardScaler().fit(x[tr])
        xt = torch.from_numpy(scaler.transform(x[tr]).astype(np.float32))
        xv = torch.from_numpy(scaler.transform(x[va]).astype(np.float32))
        yt = torch.from_numpy(y[tr].astype(np.float32))
        trainer = FoldTrainer(trial, x.shape[1])
        for e in range(epochs):
            loss = trainer.epoch(xt, yt)
        auc = roc_auc_score(y[va], trainer.predict(xv))
        print(f"  fold {k} loss {loss:.4f} auc {auc:.4f}")
        scores.append(auc)
    return float(np.mean(scores))


def main():
    torch.manual_seed(0)
    r = random.Random(0)
    x, y = make_classification(n_samples=3_600, n_features=60, n_informative=20, n_redundant=10,
                               weights=[0.8], flip_y=0.03, random_state=0)
    leaderboard = []
    for t in range(2):
        trial = sample_trial(r)
        print(f"trial {t}: {trial}")
        leaderboard.append((cross_validate(trial, x, y), trial))
    best = max(leaderboard, key=lambda item: item[0])
    print(f"best auc {best[0]:.4f} with {best[1]}")


if __name__ == "__main__":
    main()
