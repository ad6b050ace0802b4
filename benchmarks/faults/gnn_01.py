import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)
N, FEATURES, CLASSES, DEG = 3000, 256, 7, 12
labels = torch.randint(0, CLASSES, (N,))
features = torch.randn(N, FEATURES) + F.one_hot(labels, CLASSES).float() @ torch.randn(
    CLASSES, FEATURES
)
neighbours = []
for n in range(N):
    neighbours.append(random.sample(range(N), DEG))


def subgraph(nodes):
    position = {n: i for i, n in enumerate(nodes)}
    size = len(nodes)
    rows = [[0.0] * size for _ in range(size)]
    for i, n in enumerate(nodes):
        for m in neighbours[n]:
            j = position.get(m)
            if j is not None:
                rows[i][j] = 1.0
        rows[i][i] = 1.0
        degree = sum(rows[i])
        rows[i] = [v / degree for v in rows[i]]
    return torch.tensor(rows)


class GCN(nn.Module):
    def __init__(self, hidden=512):
        super().__init__()
        self.l1 = nn.Linear(FEATURES, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden, CLASSES)

    def forward(self, a, x):
        x = F.relu(self.l1(a @ x))
        x = F.dropout(x, 0.3, self.training)
        x = F.relu(self.l2(a @ x))
        return self.l3(a @ x)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
t0 = time.time()
for step in range(1, 81):
    nodes = random.sample(range(N), 700)
    a = subgraph(nodes)
    pick = torch.tensor(nodes)
    logits = model(a, features[pick])
    loss = F.cross_entropy(logits, labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("%d loss %.4f (%.1fs)" % (step, loss.item(), time.time() - t0))
