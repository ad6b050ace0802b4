"""Two-layer GCN on a synthetic citation graph: hand-optimised version of gcn_citations.py.

Same graph, weights, dropout masks, Adam and number of epochs.  What is different:
  * the adjacency is sparse (about 5 entries per row), not a dense n x n matrix;
  * adj @ features does not depend on the weights: computed once;
  * training needs the output of the 140 training nodes only, validation that of the 400 validation nodes only, so
    only the rows within one hop of those are computed;
  * the hidden layer after the optimizer step serves both this epoch's validation and the next epoch's training pass;
  * dropout masks are drawn ahead (the same ones, from the same generator), the gradients are written out by hand.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument('--seed', type=int, default=42)
parser.add_argument('--epochs', type=int, default=100)
parser.add_argument('--lr', type=float, default=0.01)
parser.add_argument('--weight_decay', type=float, default=5e-4)
parser.add_argument('--hidden', type=int, default=64)
parser.add_argument('--dropout', type=float, default=0.5)
parser.add_argument('--threads', type=int, default=2)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)
torch.set_num_threads(args.threads)


def normalize(mx):
    rowsum = mx.sum(1)
    r_inv = np.power(rowsum, -1.0)
    r_inv[np.isinf(r_inv)] = 0.0
    return r_inv[:, None] * mx


def load_data(n=2000, n_class=7, n_feat=800, n_edges=4500, p_in=0.8, words=18):
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
    return (torch.from_numpy(adj), torch.from_numpy(features), torch.from_numpy(labels),
            torch.from_numpy(perm[:140]), torch.from_numpy(perm[200:600]), torch.from_numpy(perm[1000:2000]))


adj, features, labels, idx_train, idx_val, idx_test = load_data()
n, n_feat = features.shape
n_class = int(labels.max()) + 1
H = args.hidden

# weights drawn in the order and manner of the original module
W1, b1 = torch.empty(n_feat, H), torch.empty(H)
for p in (W1, b1):
    p.uniform_(-1. / H ** 0.5, 1. / H ** 0.5)
W2, b2 = torch.empty(H, n_class), torch.empty(n_class)
for p in (W2, b2):
    p.uniform_(-1. / n_class ** 0.5, 1. / n_class ** 0.5)

# the four tensors as views of one flat parameter: the optimizer then updates a single tensor
sizes = [W1.numel(), b1.numel(), W2.numel(), b2.numel()]
flat = torch.cat([W1.flatten(), b1, W2.flatten(), b2])
flat.requires_grad_(True)
flat.grad = torch.zeros_like(flat)


def views(t):
    a, b, c, d = t.split(sizes)
    return a.view(n_feat, H), b, c.view(H, n_class), d


W1, b1, W2, b2 = views(flat.detach())
gW1, gb1, gW2, gb2 = views(flat.grad)
optimizer = optim.Adam([flat], lr=args.lr, weight_decay=args.weight_decay, fused=True)

# rows one hop around the training nodes first, then those only needed for validation
near_train = adj[idx_train].ne(0).any(0)
near_val = adj[idx_val].ne(0).any(0)
rows = torch.cat([near_train.nonzero()[:, 0], (near_val & ~near_train).nonzero()[:, 0]])
m = int(near_train.sum())
AX = adj.to_sparse_csr() @ features
AXr = AX[rows].to_sparse_csr()
AXt_T = AX[rows[:m]].t().contiguous().to_sparse_csr()
A_train = adj[idx_train][:, rows[:m]].to_sparse_csr()
A_train_T = adj[idx_train][:, rows[:m]].t().contiguous().to_sparse_csr()
A_val = adj[idx_val][:, rows].to_sparse_csr()
y_train, y_val = labels[idx_train], labels[idx_val]
neg_onehot = -F.one_hot(y_train, n_class).float()

t_total = time.time()
masks = []
buf = torch.empty(n, H)
for _ in range(args.epochs):
    masks.append(buf.bernoulli_(1 - args.dropout)[rows[:m]].div_(1 - args.dropout))


@torch.no_grad()
def main():
    hid = torch.addmm(b1, AXr, W1).relu_()
    for epoch in range(args.epochs):
        t = time.time()
        # forward, training rows
        h = hid[:m]
        mask = masks[epoch]
        hd = h * mask
        out = torch.addmm(b2, A_train, hd @ W2)
        logp = F.log_softmax(out, dim=1)
        loss_train = F.nll_loss(logp, y_train).item()
        acc_train = (logp.argmax(1) == y_train).sum().item() / len(y_train)
        # backward
        d_out = logp.exp_().add_(neg_onehot).div_(len(y_train))
        torch.sum(d_out, 0, out=gb2)
        d_s = A_train_T @ d_out
        torch.mm(hd.t(), d_s, out=gW2)
        d_h = (d_s @ W2.t()).mul_(mask).mul_(h > 0)
        torch.sum(d_h, 0, out=gb1)
        gW1.copy_(AXt_T @ d_h)
        optimizer.step()
        # hidden layer with the new weights: for validation now, for training in the next epoch
        hid = torch.addmm(b1, AXr, W1).relu_()
        logp = F.log_softmax(torch.addmm(b2, A_val, hid @ W2), dim=1)
        loss_val = F.nll_loss(logp, y_val).item()
        acc_val = (logp.argmax(1) == y_val).sum().item() / len(y_val)
        print('Epoch: {:04d} loss_train: {:.4f} acc_train: {:.4f} loss_val: {:.4f} acc_val: {:.4f} time: {:.4f}s'.format(
            epoch + 1, loss_train, acc_train, loss_val, acc_val, time.time() - t))
    print("Optimization Finished!")
    print("Total time elapsed: {:.4f}s".format(time.time() - t_total))

    hid = torch.addmm(b1, AX, W1).relu_()
    logp = F.log_softmax(torch.addmm(b2, adj[idx_test], hid @ W2), dim=1)
    loss_test = F.nll_loss(logp, labels[idx_test])
    acc_test = (logp.argmax(1) == labels[idx_test]).double().mean()
    print("Test set results:", "loss= {:.4f}".format(loss_test.item()), "accuracy= {:.4f}".format(acc_test.item()))


main()
