"""PatchTST ("A Time Series is Worth 64 Words") on made-up electricity data -- tuned for a CPU with bf16."""
import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

BF16 = torch.bfloat16


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


class Windows:
    """All windows of one part of the data as a view [n_clients, n_windows, seq_len + pred_len]."""

    def __init__(self, data, flag, seq_len, pred_len):
        num_train = int(len(data) * 0.7)
        num_test = int(len(data) * 0.2)
        num_val = len(data) - num_train - num_test
        begin, end = {"train": (0, num_train), "val": (num_train - seq_len, num_train + num_val)}[flag]
        train_data = data[:num_train]
        data = (data[begin:end] - train_data.mean(axis=0)) / train_data.std(axis=0)
        self.windows = torch.from_numpy(np.ascontiguousarray(data.T)).unfold(1, seq_len + pred_len, 1)
        self.seq_len = seq_len

    def __len__(self):
        return self.windows.shape[1]

    def batch(self, idx):
        w = self.windows[:, idx]                        # [n_clients, bs, seq_len + pred_len]
        return w[..., :self.seq_len], w[..., self.seq_len:]


rng = None                                              # SFC64: some 20 times faster than Tensor.bernoulli_


class DropBits(torch.autograd.Function):
    """Zeros each element with probability p. The factor 1 / (1 - p) goes into a weight before or after."""

    @staticmethod
    def forward(ctx, x, p):
        n = x.numel()
        r = torch.from_numpy(rng.integers(0, 2 ** 64 - 1, (n + 3) // 4, dtype=np.uint64, endpoint=True).view(np.int16))
        mask = torch.empty(x.shape, dtype=torch.int16)
        torch.lt(r[:n].view(x.shape), round((1 - p) * 65536) - 32768, out=mask).neg_()      # 0 or all bits
        ctx.save_for_backward(mask)
        return (x.view(torch.int16) & mask).view(BF16)

    @staticmethod
    def backward(ctx, g):
        mask, = ctx.saved_tensors
        return (g.contiguous().view(torch.int16) & mask).view(BF16), None


class Attention(torch.autograd.Function):
    """x: [sequences, length, 3 (q, scaled; k; v), heads, d].

    A column of ones behind v makes the product with v also give the sums that softmax divides by, and in the
    backward pass it subtracts the mean: no pass over the scores but the maximum, exp and one product.
    """

    @staticmethod
    def forward(ctx, x):
        B, L, _, H, d = x.shape
        q, k, v = x.permute(2, 0, 3, 1, 4)
        # dense, so that bmm makes no copies of its own
        q, k = q.reshape(B * H, L, d), k.reshape(B * H, L, d)
        v1 = torch.ones(B, H, L, d + 2, dtype=BF16)
        v1[..., :d] = v
        v1 = v1.view(B * H, L, d + 2)
        s = torch.bmm(q, k.transpose(1, 2))
        e = s.sub_(s.amax(-1, keepdim=True)).exp_()
        o = torch.bmm(e, v1).view(B, H, L, -1)
        z = o[..., d:d + 1].reciprocal()
        out = torch.empty(B, L, H, d, dtype=BF16)
        torch.mul(o[..., :d], z, out=out.transpose(1, 2))
        ctx.save_for_backward(q, k, v1, e, out, z)
        return out.view(B, L, H * d)

    @staticmethod
    def backward(ctx, do):
        q, k, v1, e, out, z = ctx.saved_tensors
        B, L, H, d = out.shape
        do = do.view(B, L, H, d)
        g = torch.zeros(B, H, L, d + 2, dtype=BF16)
        torch.mul(do.transpose(1, 2), z, out=g[..., :d])
        torch.mul((do * out).sum(-1).transpose(1, 2), z[..., 0].neg(), out=g[..., d])
        g = g.view(B * H, L, d + 2)
        ds = torch.bmm(g, v1.transpose(1, 2)).mul_(e)
        dx = torch.empty(B, L, 3, H, d, dtype=BF16)
        dq, dk, dv = dx.permute(2, 0, 3, 1, 4)
        dq.copy_(torch.bmm(ds, k).view(B, H, L, d))
        dk.copy_(torch.bmm(ds.transpose(1, 2), q).view(B, H, L, d))
        dv.copy_(torch.bmm(e.transpose(1, 2), g).view(B, H, L, d + 2)[..., :d])
        return dx


class RevIN(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(num_features))
        self.affine_bias = nn.Parameter(torch.zeros(num_features))


class TSTEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.n_heads, self.d_k, self.p = n_heads, d_model // n_heads, dropout
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.to_out = nn.Linear(d_model, d_model)
        self.norm_attn = nn.BatchNorm1d(d_model)
        self.ff1 = nn.Linear(d_model, d_ff)
        self.ff2 = nn.Linear(d_ff, d_model)
        self.norm_ffn = nn.BatchNorm1d(d_model)

    def qkv(self, x):
        """One product; the scale of the scores goes into q."""
        w = torch.cat([self.W_Q.weight * self.d_k ** -0.5, self.W_K.weight, self.W_V.weight])
        b = torch.cat([self.W_Q.bias * self.d_k ** -0.5, self.W_K.bias, self.W_V.bias])
        return F.linear(x, w.to(BF16), b.to(BF16))

    def norm(self, bn, x):
        # memory order of channels_last: the fast kernel, and no transposed copies
        x = x.view(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
        x = F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, self.training, bn.momentum, bn.eps)
        return x.permute(0, 2, 3, 1).view(-1, x.shape[1])

    def linear(self, l, x, p_before=0., p_after=0.):
        w, b = l.weight, l.bias
        if self.training:
            w, b = w / ((1 - p_before) * (1 - p_after)), b / (1 - p_after)
        return F.linear(x, w.to(BF16), b.to(BF16))

    def drop(self, x, p):
        return DropBits.apply(x, p) if self.training else x

    def forward(self, src, length):
        H, d, p = self.n_heads, self.d_k, self.p
        o = Attention.apply(self.qkv(src).view(-1, length, 3, H, d)).flatten(0, 1)
        # two dropouts follow one another: one mask with the product of the odds
        p2 = 1 - (1 - p) ** 2
        src = self.norm(self.norm_attn, src + self.drop(self.linear(self.to_out, o, p_after=p2), p2))
        h = self.drop(F.gelu(self.linear(self.ff1, src)), p)
        return self.norm(self.norm_ffn, src + self.drop(self.linear(self.ff2, h, p_before=p, p_after=p), p))


class PatchTST(nn.Module):
    def __init__(self, c_in, context_window, target_window, patch_len=16, stride=8, n_layers=3, d_model=64,
                 n_heads=4, d_ff=128, dropout=0.2):
        super().__init__()
        self.patch_len, self.stride, self.p = patch_len, stride, dropout
        self.revin = RevIN(c_in)
        self.patch_num = (context_window - patch_len) // stride + 2
        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(self.patch_num, d_model).uniform_(-0.02, 0.02))
        self.layers = nn.ModuleList([TSTEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.linear = nn.Linear(d_model * self.patch_num, target_window)

    def forward(self, z):                                                   # z: [nvars x bs x seq_len]
        r = self.revin
        aw, ab = r.affine_weight[:, None, None], r.affine_bias[:, None, None]
        var, mean = torch.var_mean(z, -1, keepdim=True, unbiased=False)
        stdev = torch.sqrt(var + r.eps)
        n_vars, bs = z.shape[:2]
        z = (z - mean) / stdev * aw + ab

        z = F.pad(z, (0, self.stride), mode="replicate").to(BF16)
        z = z.unfold(-1, self.patch_len, self.stride).reshape(n_vars * bs, self.patch_num, self.patch_len)
        w, pos = self.W_P.weight, self.W_P.bias + self.W_pos
        if self.training:
            w, pos = w / (1 - self.p), pos / (1 - self.p)
        u = F.linear(z, w.to(BF16)) + pos.to(BF16)
        if self.training:
            u = DropBits.apply(u, self.p)
        u = u.flatten(0, 1)
        for layer in self.layers:
            u = layer(u, self.patch_num)

        # turn the weight of the head instead of the activations
        w = self.linear.weight.view(self.linear.out_features, -1, self.patch_num).transpose(1, 2).reshape(
            self.linear.out_features, -1)
        out = F.linear(u.view(n_vars * bs, -1), w.to(BF16)).float() + self.linear.bias
        out = out.view(n_vars, bs, -1)
        return (out - ab) / (aw + r.eps * r.eps) * stdev + mean


@torch.no_grad()
def validate(model, val_set, args, n_batches=10):
    model.eval()
    mse, mae = [], []
    for i in range(n_batches):
        x, y = val_set.batch(torch.arange(i * args.batch_size, (i + 1) * args.batch_size))
        out = model(x)
        mse.append(F.mse_loss(out, y))
        mae.append(F.l1_loss(out, y))
    model.train()
    print(f"val mse {torch.stack(mse).mean().item():.6f} mae {torch.stack(mae).mean().item():.6f}", flush=True)


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

    global rng
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    rng = np.random.Generator(np.random.SFC64(args.seed))
    data = make_electricity()
    train_set = Windows(data, "train", args.seq_len, args.pred_len)
    val_set = Windows(data, "val", args.seq_len, args.pred_len)
    loader = DataLoader(range(len(train_set)), batch_size=args.batch_size, shuffle=True, drop_last=True,
                        collate_fn=torch.tensor)

    model = PatchTST(data.shape[1], args.seq_len, args.pred_len, d_model=args.d_model, n_heads=args.n_heads,
                     d_ff=args.d_ff, n_layers=args.e_layers, dropout=args.dropout)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, pct_start=0.3,
                                                    total_steps=args.total_steps)
    step = 0
    while step < args.steps:
        for idx in loader:
            x, y = train_set.batch(idx)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step % args.val_every == 0:
                validate(model, val_set, args)
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
