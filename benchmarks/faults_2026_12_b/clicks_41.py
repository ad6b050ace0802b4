import dataclasses
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class Config:
    n_sessions: int = 20_000
    n_pages: int = 4_000
    max_events: int = 128
    dim: int = 48
    hidden: int = 64
    batch_size: int = 64
    steps: int = 300
    lr: float = 2e-3
    clip: float = 1.0
    seed: int = 7


def build_sessions(cfg):
    rng = np.random.default_rng(cfg.seed)
    lengths = np.minimum(rng.geometric(1 / 16, cfg.n_sessions) + 2, cfg.max_events)
    hot = rng.random(cfg.n_pages) < 0.08
    sessions = []
    for n in lengths:
        pages = (rng.zipf(1.3, n) % (cfg.n_pages - 1) + 1).astype(np.int64)
        dwell = rng.exponential(1.0, n).astype(np.float32)
        logit = 2.5 * hot[pages].mean() + 0.3 * dwell.mean() - 1.0
        sessions.append((pages, dwell, float(rng.random() < 1 / (1 + np.exp(-logit)))))
    return sessions


class ClickSessions(Dataset):
    def __init__(self, sessions):
        self.sessions = sessions

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, i):
        return self.sessions[i]


class Collator:
    def __init__(self, cfg):
        self.cfg = cfg

    def __call__(self, samples):
        width = self.cfg.max_events
        pages = np.zeros((len(samples), width), dtype=np.int64)
        dwell = np.zeros((len(samples), width), dtype=np.float32)
        mask = np.zeros((len(samples), width), dtype=bool)
        for r, (p, d, _) in enumerate(samples):
            pages[r, :len(p)] = p
            dwell[r, :len(d)] = d
            mask[r, :len(p)] = True
        label = np.array([s[2] for s in samples], dtype=np.float32)
        return tuple(torch.from_numpy(a) for a in (pages, dwell, mask, label))


class SessionEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.page = nn.Embedding(cfg.n_pages, cfg.dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(cfg.dim + 1, 4 * cfg.hidden), nn.GELU(), nn.Linear(4 * cfg.hidden, cfg.hidden))
        self.ff = nn.Sequential(nn.Linear(cfg.hidden, 4 * cfg.hidden), nn.GELU(), nn.Linear(4 * cfg.hidden, cfg.hidden))
        self.norm = nn.LayerNorm(cfg.hidden)
        self.score = nn.Linear(cfg.hidden, 1)
        self.out = nn.Linear(cfg.hidden, 1)

    def forward(self, pages, dwell, mask):
        x = self.mix(torch.cat([self.page(pages), dwell.unsqueeze(-1)], dim=-1))
        x = x + self.ff(self.norm(x))
        a = self.score(x).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(dim=1)
        return self.out((a.unsqueeze(-1) * x).sum(1)).squeeze(-1)


class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        random.seed(cfg.seed)
        torch.manual_seed(cfg.seed)
        self.loader = DataLoader(ClickSessions(build_sessions(cfg)), batch_size=cfg.batch_size,
                                 shuffle=True, drop_last=True, collate_fn=Collator(cfg))
        self.model = SessionEncoder(cfg)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss_fn = nn.BCEWithLogitsLoss()

    def batches(self):
        done = 0
        while True:
            for batch in self.loader:
                yield done, batch
                done += 1
                if done >= self.cfg.steps:
                    return

    def fit(self):
        running = None
        for step, (pages, dwell, mask, label) in self.batches():
            loss = self.loss_fn(self.model(pages, dwell, mask), label)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.opt.step()
            value = loss.item()
            running = value if running is None else 0.98 * running + 0.02 * value
            if step % 50 == 0:
                print(f"step {step:4d} loss {running:.4f}")
        print(f"done, loss {running:.4f}")


if __name__ == "__main__":
    Runner(Config()).fit()
