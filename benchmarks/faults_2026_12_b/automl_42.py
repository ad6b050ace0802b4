"""Grid search plus a small snapshot ensemble on the digits table, cross-validated."""
import copy
import itertools

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold
from torch.optim.swa_utils import AveragedModel


def net(width, dropout):
    return nn.Sequential(
        nn.Linear(64, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(dropout),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(dropout),
        nn.Linear(width, 10))


class EarlyStop:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, -1.0, 0, None

    def update(self, score, model):
        if score > self.best:
            self.best, self.bad, self.state = score, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


@torch.no_grad()
def probabilities(model, x):
    model.eval()
    p = model(x).softmax(1)
    model.train()
    return p


def train_fold(x, y, xv, yv, width, dropout, lr, epochs=10, batch=128):
    model = net(width, dropout)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95))
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    steps = epochs * (len(x) // batch)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=steps)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    stop = EarlyStop(patience=6)
    for epoch in range(epochs):
        order = torch.randperm(len(x))[: len(x) // batch * batch].view(-1, batch)
        for idx in order:
            xb = x[idx]
            xb = xb + 0.05 * torch.randn_like(xb)
            loss = loss_fn(model(xb), y[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            sched.step()
        average.update_parameters(model)
        acc = (probabilities(model, xv).argmax(1) == yv).float().mean().item()
        if stop.update(acc, model):
            break
    model.load_state_dict(stop.state)
    return stop.best, probabilities(model, xv), loss.item()


def main():
    torch.manual_seed(12)
    data = load_digits()
    x = torch.from_numpy((data.data / 16.0).astype(np.float32))
    y = torch.from_numpy(data.target.astype(np.int64))
    grid = list(itertools.product([768, 1024], [0.1, 0.3]))
    folds = list(KFold(3, shuffle=True, random_state=12).split(x))
    table = {}
    blend = torch.zeros(len(x), 10)
    for width, dropout in grid:
        scores = []
        for tr, va in folds:
            tr, va = torch.from_numpy(tr), torch.from_numpy(va)
            best, p, loss = train_fold(x[tr], y[tr], x[va], y[va], width, dropout, 2e-3)
            scores.append(best)
            blend[va] += p
        table[width, dropout] = float(np.mean(scores))
        print(f"width {width} dropout {dropout} loss {loss:.4f} acc {table[width, dropout]:.4f}")
    print("best", max(table, key=table.get), "blend acc", (blend.argmax(1) == y).float().mean().item())


if __name__ == "__main__":
    main()
