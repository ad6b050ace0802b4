"""Realised-volatility forecasting for a basket of stocks with an LSTM."""
import os
import tempfile

import numpy as np
import torch
from torch import nn
from tqdm import tqdm


def garch_returns(n_assets, n_days, seed):
    rng = np.random.default_rng(seed)
    var = np.full(n_assets, 1e-4)
    r = np.empty((n_days, n_assets))
    sig = np.empty((n_days, n_assets))
    alpha, beta = rng.uniform(0.05, 0.12, n_assets), rng.uniform(0.8, 0.87, n_assets)
    for d in range(n_days):
        sig[d] = np.sqrt(var)
        r[d] = sig[d] * rng.standard_normal(n_assets)
        var = 1e-6 + alpha * r[d] ** 2 + beta * var
    return r.astype(np.float32), sig.astype(np.float32)


class VolatilityLSTM(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, num_layers=1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.lstm(x)
        return self.out(self.drop(h[:, -1])).squeeze(1)


def qlike(log_vol, realised):
    ratio = (2 * (realised.log() - log_vol)).exp()
    return (ratio - ratio.log() - 1).mean()


def sampler(features, sigma, window, batch, days, g):
    offsets = torch.arange(window)
    n_assets = sigma.shape[1]
    while True:
        d = torch.randint(days[0], days[1] - window, (batch,), generator=g)
        a = torch.randint(0, n_assets, (batch,), generator=g)
        yield features[d[:, None] + offsets, a[:, None]], sigma[d + window, a]


def main(steps=1000, window=60, batch=96):
    torch.manual_seed(19)
    g = torch.Generator().manual_seed(19)
    r, sig = garch_returns(150, 1800, 19)
    features = torch.from_numpy(np.stack([r * 100, np.abs(r) * 100, (r * 100) ** 2 / 4], axis=-1))
    sigma = torch.from_numpy(sig * 100)
    train = sampler(features, sigma, window, batch, (0, 1500), g)
    valid = sampler(features, sigma, window, 512, (1500, 1800), g)
    model = VolatilityLSTM()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
    folder = tempfile.mkdtemp(prefix="vol_")
    bar = tqdm(range(1, steps + 1), mininterval=2.0)
    for step in bar:
        x, target = next(train)
        loss = qlike(model(x), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                xv, tv = next(valid)
                v = qlike(model(xv), tv).item()
            model.train()
            sched.step(v)
            print(f"step {step} train {loss.item():.4f} valid {v:.4f}")
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, os.path.join(folder, "last.pt"))


if __name__ == "__main__":
    main()
