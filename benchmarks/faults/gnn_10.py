import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
N, E, D, C = 5000, 40000, 96, 6
labels = torch.randint(0, C, (N,))
src = torch.randint(0, N, (E,))
same = torch.argsort(labels)[torch.randint(0, N, (E,))]
dst = torch.where(torch.rand(E) < 0.5, same, torch.randint(0, N, (E,)))
x = torch.randn(N, D) + 0.5 * F.one_hot(labels, C).float() @ torch.randn(C, D)
degree = torch.zeros(N).index_add_(0, dst, torch.ones(E)).clamp(min=1)
adj = (
    torch.sparse_coo_tensor(torch.stack([dst, src]), 1 / degree[dst], (N, N))
    .coalesce()
    .to_sparse_csr()
)
train_mask = torch.rand(N) < 0.6


class Sage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.nb = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, h):
        return self.own(h) + self.nb(adj @ h)


class Model(nn.Module):
    def __init__(self, h=128):
        super().__init__()
        self.a, self.b = Sage(D, h), Sage(h, C)

    def forward(self, v):
        return self.b(F.dropout(F.relu(self.a(v)), 0.3, self.training))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(1, 101):
    model.train()
    out = model(x)
    loss = F.cross_entropy(out[train_mask], labels[train_mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 25 == 0:
        model.eval()
        with torch.no_grad():
            hit = (model(x).argmax(1) == labels)[~train_mask].float().mean()
        print(f"epoch {epoch} loss {loss.item():.4f} test {hit.item():.3f}")
