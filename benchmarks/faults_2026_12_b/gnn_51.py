# Semi-supervised node classification with a two-layer GCN on a synthetic citation network.
import numpy as np
import scipy.sparse as sp
import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, CLASSES, FEATS = 4000, 7, 160
HIDDEN, EPOCHS = 64, 800

rng = np.random.default_rng(3)
torch.manual_seed(3)


def make_graph():
    labels = rng.integers(0, CLASSES, NODES)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(CLASSES + 1))
    src = rng.integers(0, NODES, 50_000)
    same = rng.random(src.size) < 0.75
    lo, hi = bounds[labels[src]], bounds[labels[src] + 1]
    inside = order[lo + (rng.random(src.size) * (hi - lo)).astype(int)]
    dst = np.where(same, inside, rng.integers(0, NODES, src.size))
    edges = np.unique(np.stack([np.r_[src, dst], np.r_[dst, src]]), axis=1)
    edges = edges[:, edges[0] != edges[1]]
    topics = rng.normal(size=(CLASSES, FEATS))
    x = topics[labels] * 0.08 + rng.normal(size=(NODES, FEATS))
    return torch.from_numpy(edges), torch.from_numpy(x).float(), torch.from_numpy(labels)


def propagation_matrix(edge_index, n):
    """D^-1/2 (A + I) D^-1/2 as a torch CSR matrix."""
    row, col = edge_index.numpy()
    a = sp.coo_matrix((np.ones(row.size, dtype=np.float32), (row, col)), shape=(n, n))
    a = (a + sp.eye(n, dtype=np.float32)).tocsr()
    d = sp.diags(1.0 / np.sqrt(np.asarray(a.sum(1)).ravel()))
    a = (d @ a @ d).tocsr()
    return torch.sparse_csr_tensor(
        torch.from_numpy(a.indptr.astype(np.int64)),
        torch.from_numpy(a.indices.astype(np.int64)),
        torch.from_numpy(a.data),
        size=(n, n),
    )


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x, edge_index):
        adj = propagation_matrix(edge_index, x.size(0))
        return torch.sparse.mm(adj, self.lin(x)) + self.bias


class GCN(nn.Module):
    def __init__(self, d_in, hidden, d_out):
        super().__init__()
        self.conv1 = GraphConv(d_in, hidden)
        self.conv2 = GraphConv(hidden, d_out)

    def forward(self, x, edge_index):
        h = F.relu(self.conv1(x, edge_index))
        h = F.dropout(h, 0.5, training=self.training)
        return self.conv2(h, edge_index)


edge_index, features, labels = make_graph()
perm = torch.from_numpy(rng.permutation(NODES))
train_idx, val_idx = perm[:800], perm[800:1600]

model = GCN(FEATS, HIDDEN, CLASSES)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

best = 0.0
for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    out = model(features, edge_index)
    loss = F.cross_entropy(out[train_idx], labels[train_idx])
    loss.backward()
    optimizer.step()

    if (epoch + 1) % 20 == 0:
        model.eval()
        with torch.no_grad():
            pred = model(features, edge_index)[val_idx].argmax(1)
        acc = (pred == labels[val_idx]).float().mean().item()
        best = max(best, acc)
        print(f"epoch {epoch + 1:3d}  loss {loss.item():.4f}  val acc {acc:.3f}")

print(f"nodes {NODES}  edges {edge_index.size(1)}  best val acc {best:.3f}")
