"""Click prediction with embeddings and Adagrad: hand-optimised version of recsys_ctr.py.

Same data, order of rows, initial weights, Adagrad and number of steps.  What is different:
  * sparse gradients for the two big tables: Adagrad leaves rows with zero gradient as they are, so touching only the
    rows of the batch gives the same weights as the dense update of all 8 million of them;
  * batches are slices of whole arrays (same permutation) instead of 4096 __getitem__ calls and a collate;
  * rows of a batch are grouped by id when the batch is made, so that the sparse gradient is born coalesced;
  * all pairwise dot products in one bmm; loss summed in a tensor and read every 20 steps.
"""
import argparse
import time

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--n-users", type=int, default=200_000)
    p.add_argument("--n-items", type=int, default=60_000)
    p.add_argument("--n-rows", type=int, default=700_000)
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=4096)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=17)
    return p.parse_args()


def make_log(args):
    """Synthetic impressions with Zipf-like popularity and a low-rank preference structure."""
    rng = np.random.default_rng(args.seed)
    n = args.n_rows
    user = np.minimum((rng.pareto(0.9, n) * 3000).astype(np.int64), args.n_users - 1)
    item = np.minimum((rng.pareto(0.9, n) * 800).astype(np.int64), args.n_items - 1)
    hour = rng.integers(0, 24, n)
    device = rng.integers(0, 5, n)
    age = rng.normal(0, 1, n).astype(np.float32)
    price = rng.normal(0, 1, n).astype(np.float32)
    pu = rng.normal(0, 1, (args.n_users, 2)).astype(np.float32)
    qi = rng.normal(0, 1, (args.n_items, 2)).astype(np.float32)
    bias = rng.normal(0, 1.0, args.n_items).astype(np.float32)
    logit = (pu[user] * qi[item]).sum(1) + bias[item] - 0.5 * price + 0.3 * np.sin(hour / 24 * 6.28) - 0.8
    click = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return pd.DataFrame(dict(user=user, item=item, hour=hour, device=device, age=age, price=price, click=click))


class SparseRows(torch.autograd.Function):
    """weight[ids], with a coalesced sparse gradient; uniq, inverse = unique(ids)"""

    @staticmethod
    def forward(ctx, weight, ids, uniq, inverse):
        ctx.save_for_backward(uniq, inverse)
        ctx.shape = weight.shape
        return weight.index_select(0, ids)

    @staticmethod
    def backward(ctx, g):
        uniq, inverse = ctx.saved_tensors
        vals = g.new_zeros(uniq.size(0), g.size(1)).index_add_(0, inverse, g)
        return torch.sparse_coo_tensor(uniq[None], vals, ctx.shape, is_coalesced=True, check_invariants=False), \
            None, None, None


class ClickModel(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(s, dim) for s in sizes])
        for e in self.emb:
            nn.init.normal_(e.weight, std=0.05)
        self.bottom = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        n_vec = len(sizes) + 1
        self.top = nn.Sequential(
            nn.Linear(dim + n_vec * (n_vec - 1) // 2, 128), nn.ReLU(),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1))
        i, j = torch.triu_indices(n_vec, n_vec, 1)
        self.register_buffer("pairs", i * n_vec + j, persistent=False)

    def interact(self, num, user, item, hour, device):
        dense = self.bottom(num)
        v = torch.stack([dense, user, item, self.emb[2](hour), self.emb[3](device)], 1)
        dots = torch.bmm(v, v.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([dense, dots], 1)).squeeze(1)

    def forward(self, cat, num):
        return self.interact(num, self.emb[0](cat[0]), self.emb[1](cat[1]), cat[2], cat[3])


def evaluate(model, cat, num, y, bs):
    with torch.no_grad():
        preds = [torch.sigmoid(model(cat[:, i:i + bs], num[i:i + bs])) for i in range(0, len(y), bs)]
    return roc_auc_score(y.numpy(), torch.cat(preds).numpy())


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    df = make_log(args)
    n_val = 60_000
    cat = torch.from_numpy(np.ascontiguousarray(df[["user", "item", "hour", "device"]].values.astype(np.int64).T))
    num = torch.from_numpy(df[["age", "price"]].values.astype(np.float32))
    y = torch.from_numpy(df["click"].values.astype(np.float32))
    n_train = len(y) - n_val
    model = ClickModel([args.n_users, args.n_items, 24, 5], args.dim)
    bs = args.batch_size
    n_batches = -(-n_train // bs)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, {n_batches} steps per epoch")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr, foreach=False)
    criterion = nn.BCEWithLogitsLoss()
    interact = torch.compile(lambda *a: criterion(model.interact(*a[:-1]), a[-1]), dynamic=False)
    users, items = model.emb[0].weight, model.emb[1].weight
    for epoch in range(args.epochs):
        torch.empty((), dtype=torch.int64).random_()          # the DataLoader's base seed
        g = torch.Generator()
        g.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        perm = torch.randperm(n_train, generator=g)
        t0 = time.time()
        running = torch.zeros(())
        for step in range(n_batches):
            idx = perm[step * bs:(step + 1) * bs]
            c = cat.index_select(1, idx)
            uu, ui = torch.unique(c[0], return_inverse=True)
            iu, ii = torch.unique(c[1], return_inverse=True)
            args_ = (num.index_select(0, idx), SparseRows.apply(users, c[0], uu, ui),
                     SparseRows.apply(items, c[1], iu, ii), c[2], c[3], y.index_select(0, idx))
            optimizer.zero_grad()
            if len(idx) == bs:
                loss = interact(*args_)
            else:
                loss = criterion(model.interact(*args_[:-1]), args_[-1])
            loss.backward()
            optimizer.step()
            running += loss.detach()
            if (step + 1) % 20 == 0:
                print(f"epoch {epoch} step {step + 1}/{n_batches} loss {running.item() / 20:.4f} "
                      f"({(time.time() - t0) / (step + 1) * 1000:.0f} ms/step)")
                running.zero_()
        print(f"epoch {epoch} val AUC {evaluate(model, cat[:, n_train:], num[n_train:], y[n_train:], bs):.4f}")
    torch.save(model.state_dict(), "recsys_ctr.pt")


if __name__ == "__main__":
    main()
