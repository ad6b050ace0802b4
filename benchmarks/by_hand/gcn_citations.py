"""Semi-supervised node classification with a two-layer GCN (after Kipf & Welling) on a synthetic citation graph."""
from __future__ import division, print_function

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.parameter import Parameter

parser = argparse.ArgumentParser()
parser.add_argument('--fastmode', action='store_true', default=False, help='Skip validation during the training pass.')
parser.add_argument('--seed', type=int, default=42)
parser.add_argument('--epochs', type=int, default=100)
parser.add_argument('--lr', type=float, default=0.01)
parser.add_argument('--weight_decay', type=float, default=5e-4)
parser.add_argument('--hidden', type=int, default=64)
parser.add_argument('--dropout', type=float, default=0.5)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)


def normalize(mx):
    """Row-normalise a matrix"""
    rowsum = mx.sum(1)
    r_inv = np.power(rowsum, -1.0)
    r_inv[np.isinf(r_inv)] = 0.0
    return r_inv[:, None] * mx


def load_data(n=2000, n_class=7, n_feat=800, n_edges=4500, p_in=0.8, words=18):
    """A graph a little smaller than Cora: papers cite mostly papers of their own class, words depend on the class."""
    print('Loading dataset...')
    rng = np.random.RandomState(7)
    labels = rng.randint(n_class, size=n)
    by_class = [np.where(labels == c)[0] for c in range(n_class)]
    adj = np.zeros((n, n), dtype=np.float32)
    for _ in range(n_edges):
        i = rng.randint(n)
        j = rng.choice(by_class[labels[i]]) if rng.rand() < p_in else rng.randint(n)
        adj[i, j] = adj[j, i] = 1.0
    word_probs = rng.dirichlet(np.full(n_feat, 0.5), size=n_class) * 0.35 + 0.65 / n_feat
    features = np.zeros((n, n_feat), dtype=np.float32)
    for i in range(n):
        features[i, rng.choice(n_feat, size=words, p=word_probs[labels[i]])] = 1.0

    features = normalize(features).astype(np.float32)
    adj = normalize(adj + np.eye(n, dtype=np.float32)).astype(np.float32)
    perm = rng.permutation(n)
    idx_train, idx_val, idx_test = perm[:140], perm[200:600], perm[1000:2000]
    return (torch.from_numpy(adj), torch.from_numpy(features), torch.from_numpy(labels),
            torch.from_numpy(idx_train), torch.from_numpy(idx_val), torch.from_numpy(idx_test))


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(torch.empty(in_features, out_features))
        self.bias = Parameter(torch.empty(out_features))
        stdv = 1. / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.mm(adj, support)
        return output + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    return preds.eq(labels).double().sum() / len(labels)


adj, features, labels, idx_train, idx_val, idx_test = load_data()
model = GCN(nfeat=features.shape[1], nhid=args.hidden, nclass=labels.max().item() + 1, dropout=args.dropout)
optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)


def train(epoch):
    t = time.time()
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    acc_train = accuracy(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()

    if not args.fastmode:
        # Evaluate validation set performance separately, deactivates dropout during validation run.
        model.eval()
        output = model(features, adj)

    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    acc_val = accuracy(output[idx_val], labels[idx_val])
    print('Epoch: {:04d}'.format(epoch + 1),
          'loss_train: {:.4f}'.format(loss_train.item()),
          'acc_train: {:.4f}'.format(acc_train.item()),
          'loss_val: {:.4f}'.format(loss_val.item()),
          'acc_val: {:.4f}'.format(acc_val.item()),
          'time: {:.4f}s'.format(time.time() - t))


def test():
    model.eval()
    output = model(features, adj)
    loss_test = F.nll_loss(output[idx_test], labels[idx_test])
    acc_test = accuracy(output[idx_test], labels[idx_test])
    print("Test set results:", "loss= {:.4f}".format(loss_test.item()), "accuracy= {:.4f}".format(acc_test.item()))


t_total = time.time()
for epoch in range(args.epochs):
    train(epoch)
print("Optimization Finished!")
print("Total time elapsed: {:.4f}s".format(time.time() - t_total))
test()
