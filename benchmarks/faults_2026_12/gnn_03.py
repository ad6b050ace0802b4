import torch
import torch.nn.functional as F
from torch import nn


class SageLayer(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.near = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, adjacency):
        return self.own(x) + torch.sparse.mm(adjacency, self.near(x))


class Sage(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.l1, self.l2 = SageLayer(features, hidden), SageLayer(hidden, classes)

    def forward(self, x, adjacency):
        h = F.dropout(F.relu(self.l1(x, adjacency)), 0.3, self.training)
        return self.l2(h, adjacency)


def mean_adjacency(src, dst, nodes):
    src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    degree = torch.bincount(src, minlength=nodes).clamp(min=1).float()
    a = torch.sparse_coo_tensor(torch.stack([src, dst]), 1 / degree[src], (nodes, nodes))
    return a.coalesce().to_sparse_csr()


def communities(nodes=2500, edges=12_000, groups=8):
    y = torch.randint(0, groups, (nodes,))
    order = y.argsort()
    at = torch.randint(0, nodes, (edges,))
    near = (at + torch.randint(1, nodes // groups // 2, (edges,))) % nodes
    x = torch.randn(nodes, 96) + 0.4 * F.one_hot(y, 96)
    return x, y, order[at], order[near]


def main():
    torch.manual_seed(0)
    x, y, src, dst = communities()
    adjacency = mean_adjacency(src, dst, len(x))
    train = torch.rand(len(x)) < 0.6
    rows, labels = train.nonzero().squeeze(1), y[train]
    model = Sage(96, 192, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(160):
        model.train()
        loss = F.cross_entropy(model(x, adjacency)[rows], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 40 == 39:
            model.eval()
            with torch.no_grad():
                hit = (model(x, adjacency).argmax(1) == y)[~train].float().mean()
            print(epoch, loss.item(), hit.item())


if __name__ == "__main__":
    main()
