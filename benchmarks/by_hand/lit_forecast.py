"""Multivariate time-series forecasting with a Transformer encoder, in Lightning."""
import math
from argparse import ArgumentParser

import lightning as L
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def make_series(n_steps=6000, n_channels=12, seed=11):
    """Hourly 'load' curves: daily + weekly seasonality, slow trend, AR noise and cross-channel coupling."""
    rng = np.random.default_rng(seed)
    t = np.arange(n_steps)
    x = np.zeros((n_steps, n_channels))
    for c in range(n_channels):
        day = rng.uniform(0.5, 1.5) * np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6.28))
        half = rng.uniform(0.1, 0.6) * np.sin(2 * np.pi * t / 12 + rng.uniform(0, 6.28))
        week = rng.uniform(0.3, 0.8) * np.sin(2 * np.pi * t / 168 + rng.uniform(0, 6.28))
        noise = np.zeros(n_steps)
        e = rng.normal(0, 0.15, n_steps)
        for i in range(1, n_steps):
            noise[i] = 0.9 * noise[i - 1] + e[i]
        x[:, c] = day * (1 + 0.3 * week) + half + week + noise
    mix = np.eye(n_channels) + 0.1 * rng.normal(size=(n_channels, n_channels))
    return (x @ mix).astype(np.float32)


class WindowDataset(Dataset):
    def __init__(self, series, lookback, horizon):
        self.series = torch.tensor(series)
        self.lookback = lookback
        self.horizon = horizon

    def __len__(self):
        return len(self.series) - self.lookback - self.horizon + 1

    def __getitem__(self, i):
        x = self.series[i:i + self.lookback]
        y = self.series[i + self.lookback:i + self.lookback + self.horizon]
        return x, y


class LoadDataModule(L.LightningDataModule):
    def __init__(self, lookback, horizon, batch_size):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        s = make_series()
        n_train = 4700
        mean, std = s[:n_train].mean(0), s[:n_train].std(0)
        s = (s - mean) / std
        hp = self.hparams
        self.train_set = WindowDataset(s[:n_train], hp.lookback, hp.horizon)
        self.val_set = WindowDataset(s[n_train:n_train + 600], hp.lookback, hp.horizon)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.hparams.batch_size)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=1000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        pos = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, :x.size(1)]


class Forecaster(L.LightningModule):
    def __init__(self, n_channels=12, lookback=168, horizon=24, d_model=128, nhead=8, num_layers=3,
                 dim_feedforward=512, dropout=0.0, lr=5e-4, weight_decay=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.input_proj = nn.Linear(n_channels, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout, activation="gelu",
                                           batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Linear(d_model, horizon * n_channels)
        self.loss_fn = nn.MSELoss()

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        h = self.encoder(self.pos(self.input_proj(x - mean)))
        out = self.head(h[:, -1]).view(x.size(0), self.hparams.horizon, self.hparams.n_channels)
        return out + mean

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss_fn(self(x), y)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        self.log("val_loss", self.loss_fn(pred, y), prog_bar=True)
        self.log("val_mae", (pred - y).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=self.hparams.lr,
                                                    total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--lookback", type=int, default=168)
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--max_epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()

    L.seed_everything(args.seed)
    dm = LoadDataModule(args.lookback, args.horizon, args.batch_size)
    model = Forecaster(lookback=args.lookback, horizon=args.horizon)
    trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="auto", devices=1, default_root_dir=".")
    trainer.fit(model, dm)
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})
