"""PatchTST ("A Time Series is Worth 64 Words") on made-up electricity data, with Lightning.

Every channel is split into patches, every patch becomes a token, the channels
share one Transformer.
"""
import argparse
import math

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def make_electricity(n_hours=8000, n_clients=12, seed=0):
    """Hourly load of some clients: daily and weekly rhythm, trend, weather, noise, peaks."""
    rng = np.random.default_rng(seed)
    t = np.arange(n_hours)
    temperature = np.zeros(n_hours)
    for i in range(1, n_hours):
        temperature[i] = 0.98 * temperature[i - 1] + rng.normal(0, 0.2)
    data = np.zeros((n_hours, n_clients), dtype=np.float32)
    for c in range(n_clients):
        base = rng.uniform(50, 500)
        daily = sum(rng.normal(0, 1 / k) * np.sin(2 * np.pi * k * t / 24 + rng.uniform(0, 6.28)) for k in range(1, 4))
        weekly = rng.uniform(0.2, 0.8) * (((t // 24) % 7) >= 5)
        yearly = 0.5 * np.sin(2 * np.pi * t / 8760 + rng.uniform(0, 6.28))
        load = 3 + daily * (1 - 0.5 * weekly) - weekly + yearly + rng.normal(0, 0.4) * temperature
        noise = np.zeros(n_hours)
        for i in range(1, n_hours):
            noise[i] = 0.7 * noise[i - 1] + rng.normal(0, 0.25)
        peaks = (rng.random(n_hours) < 0.01) * rng.exponential(1.0, n_hours)
        data[:, c] = base * np.maximum(load + noise + peaks, 0.05)
    return data


class ElectricityDataset(Dataset):
    def __init__(self, data, flag="train", seq_len=336, pred_len=96):
        assert flag in ("train", "val", "test")
        self.seq_len = seq_len
        self.pred_len = pred_len

        num_train = int(len(data) * 0.7)
        num_test = int(len(data) * 0.2)
        num_val = len(data) - num_train - num_test
        border1s = {"train": 0, "val": num_train - seq_len, "test": len(data) - num_test - seq_len}
        border2s = {"train": num_train, "val": num_train + num_val, "test": len(data)}

        # standardise with the statistics of the training part
        train_data = data[:num_train]
        self.mean = train_data.mean(axis=0)
        self.std = train_data.std(axis=0)
        self.data = (data[border1s[flag]:border2s[flag]] - self.mean) / self.std

    def __getitem__(self, index):
        s_end = index + self.seq_len
        r_end = s_end + self.pred_len
        seq_x = self.data[index:s_end]
        seq_y = self.data[s_end:r_end]
        return torch.tensor(seq_x, dtype=torch.float32), torch.tensor(seq_y, dtype=torch.float32)

    def __len__(self):
        return len(self.data) - self.seq_len - self.pred_len + 1


class RevIN(nn.Module):
    def __init__(self, num_features, eps=1e-5, affine=True):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.affine = affine
        if self.affine:
            self.affine_weight = nn.Parameter(torch.ones(num_features))
            self.affine_bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x, mode):
        if mode == "norm":
            self._get_statistics(x)
            x = x - self.mean
            x = x / self.stdev
            if self.affine:
                x = x * self.affine_weight
                x = x + self.affine_bias
        elif mode == "denorm":
            if self.affine:
                x = x - self.affine_bias
                x = x / (self.affine_weight + self.eps * self.eps)
            x = x * self.stdev
            x = x + self.mean
        return x

    def _get_statistics(self, x):
        self.mean = torch.mean(x, dim=1, keepdim=True).detach()
        self.stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + self.eps).detach()


class Transpose(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


class MultiheadAttention(nn.Module):
    def __init__(self, d_model, n_heads, proj_dropout=0.):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.scale = self.d_k ** -0.5
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(proj_dropout))

    def forward(self, x):
        bs = x.size(0)
        # Linear (+ split in multiple heads)
        q_s = self.W_Q(x).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)        # [bs x n_heads x q_len x d_k]
        k_s = self.W_K(x).view(bs, -1, self.n_heads, self.d_k).permute(0, 2, 3, 1)    # [bs x n_heads x d_k x q_len]
        v_s = self.W_V(x).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)

        attn_scores = torch.matmul(q_s, k_s) * self.scale
        attn_weights = F.softmax(attn_scores, dim=-1)
        output = torch.matmul(attn_weights, v_s)

        output = output.transpose(1, 2).contiguous().view(bs, -1, self.n_heads * self.d_k)
        return self.to_out(output), attn_weights


class TSTEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, n_heads, proj_dropout=dropout)
        self.dropout_attn = nn.Dropout(dropout)
        self.norm_attn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(d_ff, d_model))
        self.dropout_ffn = nn.Dropout(dropout)
        self.norm_ffn = nn.Sequential(Transpose(1, 2), nn.BatchNorm1d(d_model), Transpose(1, 2))

    def forward(self, src):
        src2, attn = self.self_attn(src)
        src = src + self.dropout_attn(src2)
        src = self.norm_attn(src)
        src2 = self.ff(src)
        src = src + self.dropout_ffn(src2)
        src = self.norm_ffn(src)
        return src


class PatchTST(nn.Module):
    def __init__(self, c_in, context_window, target_window, patch_len=16, stride=8, n_layers=3, d_model=64,
                 n_heads=4, d_ff=128, dropout=0.2, head_dropout=0.):
        super().__init__()
        self.patch_len = patch_len
        self.stride = stride
        self.revin = RevIN(c_in)
        self.padding_patch_layer = nn.ReplicationPad1d((0, stride))
        patch_num = (context_window - patch_len) // stride + 2

        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(patch_num, d_model).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([TSTEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])

        self.flatten = nn.Flatten(start_dim=-2)
        self.linear = nn.Linear(d_model * patch_num, target_window)
        self.head_dropout = nn.Dropout(head_dropout)

    def forward(self, z):                                                   # z: [bs x seq_len x nvars]
        n_vars = z.shape[2]
        z = self.revin(z, "norm")
        z = z.permute(0, 2, 1)                                              # z: [bs x nvars x seq_len]

        # patching
        z = self.padding_patch_layer(z)
        z = z.unfold(dimension=-1, size=self.patch_len, step=self.stride)   # z: [bs x nvars x patch_num x patch_len]

        # encoder
        x = self.W_P(z)                                                     # x: [bs x nvars x patch_num x d_model]
        u = torch.reshape(x, (x.shape[0] * x.shape[1], x.shape[2], x.shape[3]))
        u = self.dropout(u + self.W_pos)
        for layer in self.layers:
            u = layer(u)
        z = torch.reshape(u, (-1, n_vars, u.shape[-2], u.shape[-1]))
        z = z.permute(0, 1, 3, 2)                                           # z: [bs x nvars x d_model x patch_num]

        # head
        z = self.flatten(z)
        z = self.linear(z)
        z = self.head_dropout(z)                                            # z: [bs x nvars x target_window]
        z = z.permute(0, 2, 1)
        return self.revin(z, "denorm")


class LitPatchTST(L.LightningModule):
    def __init__(self, c_in, args):
        super().__init__()
        self.args = args
        self.model = PatchTST(c_in, args.seq_len, args.pred_len, d_model=args.d_model, n_heads=args.n_heads,
                              d_ff=args.d_ff, n_layers=args.e_layers, dropout=args.dropout)
        self.criterion = nn.MSELoss()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self(x), y)
        self.log("train_loss", loss)
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % 10 == 0:
            print(f"step {self.global_step} loss {outputs['loss'].item():.6f}", flush=True)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.log("val_mse", F.mse_loss(out, y), on_epoch=True)
        self.log("val_mae", F.l1_loss(out, y), on_epoch=True)

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        print(f"val mse {m['val_mse'].item():.6f} mae {m['val_mae'].item():.6f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.args.lr, pct_start=0.3,
                                                        total_steps=self.args.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser(description="PatchTST")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--total_steps", type=int, default=400, help="length of the one-cycle schedule")
    parser.add_argument("--seq_len", type=int, default=336)
    parser.add_argument("--pred_len", type=int, default=96)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--d_model", type=int, default=64)
    parser.add_argument("--n_heads", type=int, default=4)
    parser.add_argument("--d_ff", type=int, default=128)
    parser.add_argument("--e_layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--val_every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2021)
    args = parser.parse_args()
    args.total_steps = max(args.total_steps, math.ceil(args.steps))

    L.seed_everything(args.seed)
    data = make_electricity()
    train_set = ElectricityDataset(data, "train", args.seq_len, args.pred_len)
    val_set = ElectricityDataset(data, "val", args.seq_len, args.pred_len)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, shuffle=False)

    model = LitPatchTST(data.shape[1], args)
    trainer = L.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        accelerator="auto",
        devices=1,
        val_check_interval=args.val_every,
        check_val_every_n_epoch=None,
        limit_val_batches=10,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(model, train_loader, val_loader)


if __name__ == "__main__":
    main()
