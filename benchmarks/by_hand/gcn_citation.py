"""
Semi-supervised node classification on a (synthetic) citation network
with a three layer GCN.

    python gcn_citation.py --hidden 128 --lr 0.01
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


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
    pairs = np.unique(pairs, axis=1)

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


def add_self_loops(edge_index, num_nodes):
    loop = torch.arange(num_nodes)
    return torch.cat([edge_index, torch.stack([loop, loop])], dim=1)


def gcn_norm(edge_index, num_nodes):
    row, col = edge_index
    deg = torch.zeros(num_nodes)
    deg.index_add_(0, col, torch.ones(col.size(0)))
    deg_inv_sqrt = deg.pow(-0.5)
    deg_inv_sqrt[torch.isinf(deg_inv_sqrt)] = 0
    return deg_inv_sqrt[row] * deg_inv_sqrt[col]


class GCNConv(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x, edge_index):
        n = x.size(0)
        edge_index = add_self_loops(edge_index, n)
        norm = gcn_norm(edge_index, n)
        row, col = edge_index
        x = self.lin(x)
        msg = x[row] * norm.unsqueeze(-1)
        out = torch.zeros(n, x.size(1)).index_add(0, col, msg)
        return out + self.bias


class GCN(nn.Module):
    def __init__(self, in_dim, hidden, num_classes, dropout):
        super().__init__()
        self.conv1 = GCNConv(in_dim, hidden)
        self.bn1 = nn.BatchNorm1d(hidden)
        self.conv2 = GCNConv(hidden, hidden)
        self.bn2 = nn.BatchNorm1d(hidden)
        self.conv3 = GCNConv(hidden, num_classes)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.relu(self.bn1(self.conv1(x, edge_index)))
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.relu(self.bn2(self.conv2(x, edge_index)))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.conv3(x, edge_index)
        return F.log_softmax(x, dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


def train(model, optimizer, data):
    x, y, edge_index, idx_train, _, _ = data
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.nll_loss(out[idx_train], y[idx_train])
    loss.backward()
    optimizer.step()
    return loss.item(), accuracy(out[idx_train], y[idx_train])


@torch.no_grad()
def test(model, data):
    x, y, edge_index, _, idx_val, idx_test = data
    model.eval()
    out = model(x, edge_index)
    val_loss = F.nll_loss(out[idx_val], y[idx_val]).item()
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

    data = make_citation_graph()
    x, y, edge_index = data[:3]
    print(f'nodes {x.size(0)} edges {edge_index.size(1)} features {x.size(1)}')
    model = GCN(x.size(1), args.hidden, int(y.max()) + 1, args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    t0 = time.time()
    for epoch in range(1, args.steps + 1):
        loss, acc = train(model, optimizer, data)
        val_loss, val_acc, test_acc = test(model, data)
        if epoch % 10 == 0 or epoch == 1:
            print(f'step {epoch} loss {loss:.4f} acc {acc:.4f} val_loss {val_loss:.4f} '
                  f'val_acc {val_acc:.4f} test_acc {test_acc:.4f}', flush=True)
    print(f'done in {time.time() - t0:.1f}s')


if __name__ == '__main__':
    main()
