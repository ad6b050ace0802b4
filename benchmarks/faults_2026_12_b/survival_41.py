"""DeepSurv on synthetic clinical covariates, mini-batch Cox partial likelihood."""
import numpy as np
import torch
import torch.nn as nn


def cohort(n, p, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)).astype(np.float32)
    risk = 0.8 * x[:, 0] - 0.6 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3] + 0.4 * np.abs(x[:, 4])
    time = rng.exponential(1.0 / (0.1 * np.exp(risk)))
    censor = rng.exponential(15.0, n)
    observed = (time <= censor).astype(np.float32)
    return x, np.minimum(time, censor).astype(np.float32), observed


class CoxLoss(nn.Module):
    """Negative Breslow partial log-likelihood of a batch."""

    def forward(self, log_risk, time, event):
        at_risk = time.unsqueeze(0) >= time.unsqueeze(1)
        scores = log_risk.unsqueeze(0).expand(len(log_risk), -1)
        denom = torch.logsumexp(scores.masked_fill(~at_risk, float("-inf")), dim=1)
        return -((log_risk - denom) * event).sum() / event.sum().clamp(min=1)


class RiskNet(nn.Module):
    def __init__(self, p, width=192, blocks=2, dropout=0.1):
        super().__init__()
        self.inp = nn.Linear(p, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Dropout(dropout))
            for _ in range(blocks))
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(1)


def concordance(score, time, event, pairs=200_000, seed=0):
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, len(score), (2, pairs))
    usable = (time[i] < time[j]) & (event[i] == 1)
    return float((score[i] > score[j])[usable].mean())


class Experiment:
    batch = 1536

    def __init__(self, n=60_000, p=24, seed=2):
        torch.manual_seed(seed)
        x, t, e = cohort(n, p, seed)
        cut = int(0.9 * n)
        self.train = tuple(torch.from_numpy(a[:cut]) for a in (x, t, e))
        self.test = x[cut:], t[cut:], e[cut:]
        self.net = RiskNet(p)
        self.loss = CoxLoss()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=1e-4)

    def run(self, epochs=12):
        x, t, e = self.train
        for epoch in range(epochs):
            total, count = 0.0, 0
            for idx in torch.randperm(len(x)).split(self.batch):
                loss = self.loss(self.net(x[idx]), t[idx], e[idx])
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.opt.step()
                total += loss.item()
                count += 1
            print(f"epoch {epoch} loss {total / count:.4f} c-index {self.score():.4f}")

    @torch.no_grad()
    def score(self):
        x, t, e = self.test
        self.net.eval()
        s = self.net(torch.from_numpy(x)).numpy()
        self.net.train()
        return concordance(s, t, e)


if __name__ == "__main__":
    Experiment().run()
