import networkx as nx
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
NODES, FEATURES, CLASSES = 1500, 128, 6
G = nx.powerlaw_cluster_graph(NODES, 4, 0.3, seed=4)
labels = torch.randint(0, CLASSES, (NODES,))
features = torch.randn(NODES, FEATURES) + F.one_hot(labels, FEATURES).float()
edges = torch.tensor(list(G.edges)).T
both = torch.cat([edges, edges.flip(0), torch.arange(NODES).repeat(2, 1)], 1)
degree = torch.bincount(both[0], minlength=NODES).float()
weight = (degree[both[0]] * degree[both[1]]).rsqrt()
A = torch.sparse_coo_tensor(both, weight, (NODES, NODES)).coalesce()


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(FEATURES + 2, 256)
        self.l2 = nn.Linear(256, 128)
        self.l3 = nn.Linear(128, CLASSES)

    def forward(self, x):
        x = torch.relu(torch.sparse.mm(A, self.l1(x)))
        x = torch.relu(torch.sparse.mm(A, self.l2(x)))
        return self.l3(x)


def structure():
    rank = nx.pagerank(G, max_iter=30, tol=1e-4)
    local = nx.clustering(G, nodes=range(0, NODES, 4))
    out = torch.zeros(NODES, 2)
    for v in range(NODES):
        out[v, 0] = rank[v] * NODES
        out[v, 1] = local.get(v, 0.0)
    return out


def step(model, optimizer, train_mask):
    x = torch.cat([F.dropout(features, 0.2), structure()], 1)
    out = model(x)
    loss = F.cross_entropy(out[train_mask], labels[train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
mask = torch.rand(NODES) < 0.6
for epoch in range(120):
    value = step(model, optimizer, mask)
    if epoch % 30 == 0:
        print(f"{epoch:4d} {value:.4f}")
