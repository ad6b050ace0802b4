"""
Semi-supervised node classification on a (synthetic) citation network
with a three layer GCN.  Tuned for a small CPU:

* the normalised adjacency is built once, as CSR with int32 indices (MKL SpMM); it is symmetric, so
  backward is the same product -- no gather / index_add of per edge messages
* the bag of words is 3% dense: dropout and X @ W only touch the nonzeros
* dropout masks from raw random bits instead of the serial bernoulli_
* ReLU(BatchNorm) in place where possible, fused Adam, evaluation only where it is reported
"""
import argparse
import time
import warnings

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings('ignore', message='Sparse')


def make_citation_graph(num_nodes=20000, num_words=800, num_classes=7, num_cites=90000, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num_nodes)

    # some papers are cited a lot more than others
    pop = rng.pareto(2.0, num_nodes) + 1.0
    by_class = [np.where(y == c)[0] for c in range(num_classes)]
    src = rng.integers(0, num_nodes, num_cites)
    same = rng.random(num_cites) < 0.5
    dst = rng.choice(num_nodes, num_cites, p=pop / pop.sum())
    for c in range(num_classes):
        m = same & (y[src] == c)
        p = pop[by_class[c]]
        dst[m] = rng.choice(by_class[c], m.sum(), p=p / p.sum())
    keep = src != dst
    pairs = np.stack([src[keep], dst[keep]])
    pairs = np.concatenate([pairs, pairs[::-1]], axis=1)        # undirected
    key = np.unique(pairs[0] * num_nodes + pairs[1])
    pairs = np.stack([key // num_nodes, key % num_nodes])       # sorted by row, then column

    # bag of words: a background topic plus a weak class topic
    background = rng.dirichlet(np.full(num_words, 0.3))
    topics = [rng.dirichlet(np.full(num_words, 0.1)) for _ in range(num_classes)]
    x = np.zeros((num_nodes, num_words), dtype=np.float32)
    for c in range(num_classes):
        ids = by_class[c]
        word_p = 0.88 * background + 0.12 * topics[c]
        words = rng.choice(num_words, size=(len(ids), 30), p=word_p)
        x[ids[:, None], words] = 1.0

    perm = rng.permutation(num_nodes)
    n_train, n_val = num_nodes // 2, num_nodes // 5
    idx_train = perm[:n_train]
    idx_val = perm[n_train:n_train + n_val]
    idx_test = perm[n_train + n_val:]
    return (torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(pairs),
            torch.from_numpy(idx_train), torch.from_numpy(idx_val), torch.from_numpy(idx_test))


class FastDropout:
    """Bernoulli noise from 16 random bits an element; torch's CPU bernoulli_ is serial, about 20 times slower"""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.SFC64(seed))

    def noise(self, shape, p, dtype=torch.float32):
        n = int(np.prod(shape))
        bits = self.rng.integers(0, 2 ** 64, (n + 3) // 4, dtype=np.uint64).view(np.int16)[:n]
        keep = torch.from_numpy(bits).view(shape) >= round(p * 65536) - 32768
        return keep.to(dtype).mul_(1 / (1 - p))

    def __call__(self, x, p, training=True):
        return x * self.noise(x.shape, p, x.dtype) if training and p > 0 else x


def csr(crow, col, val, size):
    return torch.sparse_csr_tensor(crow, col, val, size, check_invariants=False)


def to_csr_parts(row, n):
    crow = torch.zeros(n + 1, dtype=torch.int32)
    crow[1:] = torch.bincount(row, minlength=n).cumsum(0)
    return crow


def normalized_adjacency(edge_index, n):
    loop = torch.arange(n)
    row = torch.cat([edge_index[0], loop])
    col = torch.cat([edge_index[1], loop])
    order = torch.argsort(row * n + col)
    row, col = row[order], col[order]
    dis = torch.bincount(row, minlength=n).float().rsqrt()
    return csr(to_csr_parts(row, n), col.int(), dis[row] * dis[col], (n, n))


class SymSpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, adj, x):
        ctx.adj = adj
        return adj @ x

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.adj @ grad.contiguous()


class SparseFeatures:
    """X and X^T in CSR; `values_t = values[perm]`"""

    def __init__(self, x):
        self.n, self.d = x.shape
        row, col = x.nonzero(as_tuple=True)
        self.val = x[row, col]
        self.crow, self.col = to_csr_parts(row, self.n), col.int()
        self.perm = torch.argsort(col * self.n + row)
        self.crow_t, self.col_t = to_csr_parts(col, self.d), row[self.perm].int()

    def forward_matrix(self, val):
        return csr(self.crow, self.col, val, (self.n, self.d))

    def transposed(self, val):
        return csr(self.crow_t, self.col_t, val[self.perm], (self.d, self.n))


class SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, feats, val, weight):
        ctx.feats, ctx.val = feats, val
        return feats.forward_matrix(val) @ weight.t().contiguous()

    @staticmethod
    def backward(ctx, grad):
        return None, None, (ctx.feats.transposed(ctx.val) @ grad.contiguous()).t()


class GCNConv(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.lin.weight)


class GCN(nn.Module):
    def __init__(self, in_dim, hidden, num_classes, dropout):
        super().__init__()
        self.conv1 = GCNConv(in_dim, hidden)
        self.bn1 = nn.BatchNorm1d(hidden)
        self.conv2 = GCNConv(hidden, hidden)
        self.bn2 = nn.BatchNorm1d(hidden)
        self.conv3 = GCNConv(hidden, num_classes)
        self.dropout = dropout
        self.drop = FastDropout(torch.initial_seed())

    def forward(self, feats, adj):
        p, tr = self.dropout, self.training
        val = self.drop(feats.val, p, tr)
        x = SymSpMM.apply(adj, SparseLinear.apply(feats, val, self.conv1.lin.weight))
        x = F.relu_(self.bn1(x.add_(self.conv1.bias)))
        x = self.drop(x, p, tr)
        x = SymSpMM.apply(adj, self.conv2.lin(x))
        x = F.relu_(self.bn2(x.add_(self.conv2.bias)))
        x = self.drop(x, p, tr)
        return SymSpMM.apply(adj, self.conv3.lin(x)).add_(self.conv3.bias)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


@torch.inference_mode()
def test(model, feats, adj, y, idx_val, idx_test):
    model.eval()
    out = model(feats, adj)
    model.train()
    val_loss = F.cross_entropy(out[idx_val], y[idx_val]).item()
    return val_loss, accuracy(out[idx_val], y[idx_val]), accuracy(out[idx_test], y[idx_test])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--steps', type=int, default=80, help='number of (full batch) epochs')
    parser.add_argument('--hidden', type=int, default=128)
    parser.add_argument('--dropout', type=float, default=0.5)
    parser.add_argument('--lr', type=float, default=0.005)
    parser.add_argument('--weight_decay', type=float, default=5e-4)
    parser.add_argument('--seed', type=int, default=42)
    args = parser.parse_args()

    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    x, y, edge_index, idx_train, idx_val, idx_test = make_citation_graph()
    print(f'nodes {x.size(0)} edges {edge_index.size(1)} features {x.size(1)}')
    adj = normalized_adjacency(edge_index, x.size(0))
    feats = SparseFeatures(x)
    y_train = y[idx_train]
    target = torch.full_like(y, -100)
    target[idx_train] = y_train

    model = GCN(x.size(1), args.hidden, int(y.max()) + 1, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)

    t0 = time.time()
    model.train()
    for epoch in range(1, args.steps + 1):
        optimizer.zero_grad()
        out = model(feats, adj)
        loss = F.cross_entropy(out, target)      # rows outside the training set are ignored
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0 or epoch == 1:
            acc = accuracy(out.detach()[idx_train], y_train)
            val_loss, val_acc, test_acc = test(model, feats, adj, y, idx_val, idx_test)
            print(f'step {epoch} loss {loss.item():.4f} acc {acc:.4f} val_loss {val_loss:.4f} '
                  f'val_acc {val_acc:.4f} test_acc {test_acc:.4f}', flush=True)
    print(f'done in {time.time() - t0:.1f}s')


if __name__ == '__main__':
    main()
